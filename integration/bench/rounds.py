"""Rounds: the same pod up, looked at and down on both sides, right after each other."""

from typing import Protocol, TypeVar

from integration.bench.floor import Floor
from integration.bench.laps import Lap
from integration.bench.pods import ordinary_pod
from integration.bench.served import Served
from shim.api.v1 import api_pb2 as pb

READS = 10
"""Reads of each kind per round."""

Pod = TypeVar("Pod")


class Side(Protocol[Pod]):
    """One way to make a pod."""

    def up(self, lap: Lap, *, config: pb.PodSandboxConfig, container: pb.ContainerConfig) -> Pod:
        """Run a pod with one container."""
        ...

    def look(self, lap: Lap, pod: Pod, *, times: int) -> None:
        """Read `times` times, run a command in it and change a limit."""
        ...

    def down(self, lap: Lap, pod: Pod) -> None:
        """Stop and remove it."""
        ...


def run_rounds(floor: Floor, served: Served, *, rounds: int, name: str, logs: str) -> tuple[list[Lap], list[Lap]]:
    """Run both sides in turn; returns the laps of the floor and of the server.

    Who was first in one round is second in the next: what drifts on the machine hits both alike.
    """
    floors: list[Lap] = []
    servers: list[Lap] = []
    for number in range(rounds):
        turns = [
            lambda pod=f"{name}-{number}": floors.append(_lap(floor, name=pod, logs=logs)),
            lambda pod=f"{name}-{number}": servers.append(_lap(served, name=pod, logs=logs)),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    return floors, servers


def _lap(side: Side[Pod], *, name: str, logs: str) -> Lap:
    config, container = ordinary_pod(name, logs=logs)
    lap = Lap()
    pod = side.up(lap, config=config, container=container)
    side.look(lap, pod, times=READS)
    side.down(lap, pod)
    return lap
