"""Many pods at once, on either side: to be there while others are measured, and timed themselves."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from integration.bench.pods import ordinary_pod
from integration.bench.rounds import Side
from integration.bench.timings import Timings

AT_ONCE = 8
"""Pods made or removed at the same time."""

Pod = TypeVar("Pod")
Item = TypeVar("Item")
Result = TypeVar("Result")


def start_pods(sides: Sequence[Side[Pod]], *, size: int, name: str, logs: str) -> tuple[list[Pod], float]:
    """Run `size` pods with one container each; returns them and the seconds it took.

    As many at once as there are sides; each is used by one thread at a time. When a pod cannot be run, the error is
    raised and the others stay for the caller to remove.
    """

    def up(side: Side[Pod], number: int) -> Pod:
        config, container = ordinary_pod(f"{name}-{number}", logs=logs)
        return side.up(Timings(), config=config, container=container)

    return _at_once(sides, up, range(size))


def remove_pods(sides: Sequence[Side[Pod]], pods: Sequence[Pod]) -> float:
    """Stop and remove them; returns the seconds it took."""
    _, seconds = _at_once(sides, lambda side, pod: side.down(Timings(), pod), pods)
    return seconds


def _at_once(
    sides: Sequence[Side[Pod]], work: Callable[[Side[Pod], Item], Result], items: Sequence[Item]
) -> tuple[list[Result], float]:
    idle: SimpleQueue[Side[Pod]] = SimpleQueue()
    for side in sides:
        idle.put(side)

    def do(item: Item) -> Result:
        side = idle.get()
        try:
            return work(side, item)
        finally:
            idle.put(side)

    began = time.monotonic()
    with ThreadPoolExecutor(len(sides)) as pool:
        results = list(pool.map(do, items))
    return results, time.monotonic() - began
