"""Run blocking calls side by side, each in a thread of its own, under the caller's deadline scope."""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from shim.base.thread_pool import CachedThreadPool

T = TypeVar("T")
_Call: TypeAlias = "tuple[Callable[[], T], Future[T]]"

WIDTH = 16
"""Of one call: a pod has few containers, and dockerd gains nothing from more."""

_POOL = CachedThreadPool("gather")


def gather(calls: Sequence[Callable[[], T]], *, width: int = WIDTH) -> list[T]:
    """Run all calls, wait until the last has ended, and return their results in order.

    All of them run to their end even when one fails, since each may hold something that must be settled; then the
    first failure in order is raised, with the others in its notes.

    The caller's thread is one of those that do the work. Where no other can be started it does all of it, in order.
    The others are used again, and have the namespaces of the thread that started them: not for one that has entered a
    pod's.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    futures = [Future[T]() for _ in calls]
    in_context = [partial(contextvars.copy_context().run, call) for call in calls]
    left = iter(list(zip(in_context, futures, strict=True)))
    with suppress(RuntimeError):  # no thread is available
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
    """Do calls until none is left. Several threads may share the iterator, if it is that of a list."""
    for call, future in calls:
        try:
            result = call()
        except BaseException as failure:  # noqa: BLE001 - raised again in the caller
            future.set_exception(failure)
        else:
            future.set_result(result)
