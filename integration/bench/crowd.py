"""Many pods at once through the server: to be there while others are measured, and timed themselves."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from integration.bench.laps import Lap
from integration.bench.pods import ordinary_pod
from integration.bench.served import Served, ServedPod

AT_ONCE = 8
"""Pods made or removed at the same time."""


def crowd_up(served: Served, *, size: int, logs: str) -> tuple[list[ServedPod], float]:
    """Run `size` pods with one container each; returns them and the seconds it took.

    When one cannot be run, the error is raised and the others stay for the caller to remove.
    """

    def up(number: int) -> ServedPod:
        config, container = ordinary_pod(f"crowd-{number}", logs=logs)
        return served.up(Lap(), config=config, container=container)

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pods = list(pool.map(up, range(size)))
    return pods, time.monotonic() - began


def crowd_down(served: Served, pods: Sequence[ServedPod]) -> float:
    """Stop and remove them; returns the seconds it took."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda pod: served.down(Lap(), pod), pods))
    return time.monotonic() - began
