"""Run blocking calls side by side, each in a thread of its own, under the caller's deadline scope."""

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

WIDTH = 16
"""Of one call: a pod has few containers, and dockerd gains nothing from more."""


def gather(calls: Sequence[Callable[[], T]], *, width: int = WIDTH) -> list[T]:
    """Run all calls, wait until the last has ended, and return their results in order.

    All of them run to their end even when one fails, since each may hold something that must be settled; then the
    first failure in order is raised, with the others in its notes.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(max_workers=min(width, len(calls)), thread_name_prefix="gather") as pool:
        futures = [pool.submit(contextvars.copy_context().run, call) for call in calls]
        failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(f"and: {other}")
        raise first
    return [future.result() for future in futures]
