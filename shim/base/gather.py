"""Runs blocking calls concurrently in threads, under the caller's deadline scope."""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from shim.base.thread_pool import ThreadPool, run_into

T = TypeVar("T")
_Call: TypeAlias = "tuple[Callable[[], T], Future[T]]"

WIDTH = 16
"""Threads of one `gather`. A pod has few containers, and dockerd is not faster with more requests at once."""

_POOL = ThreadPool("gather")


def gather(calls: Sequence[Callable[[], T]], *, width: int = WIDTH) -> list[T]:
    """Run all calls, wait until all have ended, and return their results in order.

    If a call fails, the other calls still run to their end, since each may hold resources to release. Then the first
    failure in order is raised, with the other failures as notes.

    The caller's thread runs calls too; it runs all of them if no other thread can be started. The threads are pooled
    and keep the namespaces of the thread that started them, so a thread inside a pod's namespaces must not call this.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    futures = [Future[T]() for _ in calls]
    in_context = [partial(contextvars.copy_context().run, call) for call in calls]
    left = iter(list(zip(in_context, futures, strict=True)))
    with suppress(RuntimeError):  # no thread can be started
        for _ in range(min(width, len(calls)) - 1):
            _POOL.run(partial(_work, left))
    _work(left)
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        first, *others = failures
        for other in others:
            first.add_note(f"and: {other}")
        raise first
    return [future.result() for future in futures]


def _work(calls: "Iterator[_Call[T]]") -> None:
    """Run calls until none is left. Several threads may share `calls` if it iterates over a list."""
    for call, future in calls:
        run_into(future, call)
