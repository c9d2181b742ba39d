"""Many pods at once on a side: as load during other measurements, and timed themselves."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from integration.bench.pods import ordinary_pod
from integration.bench.rounds import Side
from integration.bench.timings import Timings

AT_ONCE = 8
"""Pods added or removed at the same time."""

Pod = TypeVar("Pod")
Item = TypeVar("Item")
Result = TypeVar("Result")


def start_pods(sides: Sequence[Side[Pod]], *, size: int, name: str, logs: str) -> tuple[list[Pod], float]:
    """Run `size` pods with a container each; return the pods and the seconds.

    There are as many at once as sides; each side is used by one thread at a time. If a pod fails, the error is raised
    and the caller has to remove the others.
    """

    def up(side: Side[Pod], number: int) -> Pod:
        config, container = ordinary_pod(f"{name}-{number}", logs=logs)
        return side.up(Timings(), config=config, container=container)

    return _at_once(sides, up, range(size))


def remove_pods(sides: Sequence[Side[Pod]], pods: Sequence[Pod]) -> float:
    """Stop and remove pods; return the seconds."""
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
