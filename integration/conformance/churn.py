"""Pods that crash, restart, are probed and are replaced."""

import time
from collections.abc import Callable
from itertools import count

from integration.conformance.scenario import Case, container, eventually, pod

_PODS = 6
_ROUND_SECONDS = 20.0


def churn(case: Case, *, minutes: float, say: Callable[[str], None]) -> None:
    """Run rounds of such pods for `minutes`; all pods of a round must crash, restart and disappear."""
    until = time.monotonic() + minutes * 60
    for number in count(1):
        if time.monotonic() > until:
            return
        names = [f"round-{number}-{index}" for index in range(_PODS)]
        for index, name in enumerate(names):
            case.kubectl.apply(_restless(name, index))
        ends = min(until, time.monotonic() + _ROUND_SECONDS)
        eventually(lambda names=names: all(case.restarts(name) >= 2 for name in names))  # type: ignore[misc]
        eventually(lambda ends=ends: time.monotonic() > ends)  # type: ignore[misc]
        case.kubectl("delete", "pod", *names, "--wait=false")
        eventually(lambda: not case.get("pods")["items"])
        say(f"round {number}, {max(0.0, until - time.monotonic()):.0f} s to go")


def _restless(name: str, index: int) -> dict[str, object]:
    """Return a pod of one of three kinds: it crashes, its liveness probe fails, or one of its two containers exits."""
    ready = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    kinds = (
        [container("sh", "-c", "sleep 1; exit 1", readinessProbe=ready)],
        [
            container(
                "sh",
                "-c",
                "trap 'exit 0' TERM; sleep 3600 & wait",
                livenessProbe={"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1},
                readinessProbe=ready,
            )
        ],
        [container("sh", "-c", "exit 0"), container(name="steady", readinessProbe=ready)],
    )
    return pod(name, *kinds[index % len(kinds)])
