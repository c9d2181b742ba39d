"""Rounds: the same pod up, in use and down on every side, in direct succession."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from integration.bench.pods import ordinary_pod
from integration.bench.timings import Timings
from shim.api.v1 import api_pb2 as pb

READS = 10
"""Reads of each kind in a round."""

Pod = TypeVar("Pod")


class Side(Protocol[Pod]):
    """A way to run a pod."""

    def up(self, timings: Timings, *, config: pb.PodSandboxConfig, container: pb.ContainerConfig) -> Pod:
        """Run a pod with a container."""
        ...

    def exercise(self, timings: Timings, pod: Pod, *, times: int) -> None:
        """Read `times` times, run a command in the pod and change a limit."""
        ...

    def down(self, timings: Timings, pod: Pod) -> None:
        """Stop and remove the pod."""
        ...


def run_rounds(sides: Mapping[str, Side[Any]], *, rounds: int, name: str, logs: str) -> dict[str, list[Timings]]:
    """Run all sides in turn; return the timings of each, in the order of the rounds.

    Each round starts with another side, so that drift of the machine affects all alike.
    """
    timed_rounds: dict[str, list[Timings]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in rotated(list(sides), number):
            timings = _timed_round(sides[side], name=f"{name}-{number}", logs=f"{logs}/{side}")
            timed_rounds[side].append(timings)
    return timed_rounds


def rotated(sides: list[str], number: int) -> list[str]:
    """Return the sides in the order of a round."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def _timed_round(side: Side[Pod], *, name: str, logs: str) -> Timings:
    config, container = ordinary_pod(name, logs=logs)
    timings = Timings()
    pod = side.up(timings, config=config, container=container)
    side.exercise(timings, pod, times=READS)
    side.down(timings, pod)
    return timings
