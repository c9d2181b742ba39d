"""Many pods at once through the server: to be there while others are measured, and timed themselves."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from integration.bench.pods import ordinary_pod
from integration.bench.timed_pod import PodClient, TimedPod
from integration.bench.timings import Timings

AT_ONCE = 8
"""Pods made or removed at the same time."""


def start_pods(client: PodClient, *, size: int, logs: str) -> tuple[list[TimedPod], float]:
    """Run `size` pods with one container each; returns them and the seconds it took.

    When one cannot be run, the error is raised and the others stay for the caller to remove.
    """

    def up(number: int) -> TimedPod:
        config, container = ordinary_pod(f"load-{number}", logs=logs)
        return client.up(Timings(), config=config, container=container)

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        pods = list(pool.map(up, range(size)))
    return pods, time.monotonic() - began


def remove_pods(client: PodClient, pods: Sequence[TimedPod]) -> float:
    """Stop and remove them; returns the seconds it took."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda pod: client.down(Timings(), pod), pods))
    return time.monotonic() - began
