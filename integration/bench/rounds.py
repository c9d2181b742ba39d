"""Rounds: the same pod up, in use and down on both sides, right after each other."""

from typing import Protocol, TypeVar

from integration.bench.floor import Floor
from integration.bench.pods import ordinary_pod
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from shim.api.v1 import api_pb2 as pb

READS = 10
"""Reads of each kind per round."""

Pod = TypeVar("Pod")


class Side(Protocol[Pod]):
    """One way to make a pod."""

    def up(self, timings: Timings, *, config: pb.PodSandboxConfig, container: pb.ContainerConfig) -> Pod:
        """Run a pod with one container."""
        ...

    def exercise(self, timings: Timings, pod: Pod, *, times: int) -> None:
        """Read `times` times, run a command in it and change a limit."""
        ...

    def down(self, timings: Timings, pod: Pod) -> None:
        """Stop and remove it."""
        ...


def run_rounds(
    floor: Floor, client: PodClient, *, rounds: int, name: str, logs: str
) -> tuple[list[Timings], list[Timings]]:
    """Run both sides in turn; returns the timings of the floor and of the server.

    Who was first in one round is second in the next: what drifts on the machine hits both alike.
    """
    floors: list[Timings] = []
    servers: list[Timings] = []
    for number in range(rounds):
        turns = [
            lambda pod=f"{name}-{number}": floors.append(_timed_round(floor, name=pod, logs=logs)),
            lambda pod=f"{name}-{number}": servers.append(_timed_round(client, name=pod, logs=logs)),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    return floors, servers


def _timed_round(side: Side[Pod], *, name: str, logs: str) -> Timings:
    config, container = ordinary_pod(name, logs=logs)
    timings = Timings()
    pod = side.up(timings, config=config, container=container)
    side.exercise(timings, pod, times=READS)
    side.down(timings, pod)
    return timings
