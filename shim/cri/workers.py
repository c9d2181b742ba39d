"""The thread pool that runs RPCs. It survives times in which the kernel refuses to start a thread.

`ThreadPoolExecutor` does not: its `submit` raises when the kernel refuses a thread, and gRPC calls `submit` in the only
thread that accepts RPCs, which then ends for good. Catching the error is not enough, because that pool derives its idle
threads from the work submitted and done. After each refusal it counts a thread that does not exist, and queues RPCs
for it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from shim.base.thread_pool import ThreadPool, run_into

READY = 4
"""Threads from the start on: without any, no RPC would be answered while no thread can be started."""

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger(__name__)


class Workers:
    """A thread for each running call, up to `most`; further calls wait. Thread-safe."""

    def __init__(self, most: int, *, name: str) -> None:
        """`name` is the prefix of the names of the threads."""
        self._pool = ThreadPool(name, most=most, ready=min(READY, most), numbered=True)
        self._shut_down = False

    def start(self) -> None:
        """Start READY threads. Raise RuntimeError if they cannot be started."""
        self._pool.start()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Call `fn` in a thread. Raise RuntimeError after `shutdown`, but never for lack of a thread."""
        future: Future[R] = Future()
        shortage = self._pool.enqueue(partial(self._run, future, partial(fn, *args, **kwargs)))
        if shortage is not None:
            log.warning("RPC queued: no worker thread available", error=shortage)
        return future

    def shutdown(self) -> None:
        """Refuse new calls, cancel waiting calls as soon as a thread is free, and end the threads. Idempotent."""
        self._shut_down = True
        self._pool.close()

    def _run(self, future: "Future[R]", work: Callable[[], R]) -> None:
        if self._shut_down:
            future.cancel()
        if future.set_running_or_notify_cancel():
            run_into(future, work)
