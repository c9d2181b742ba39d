"""The threads that answer RPCs, on a node that may have no thread left for a while.

`ThreadPoolExecutor` does not serve: where the kernel refuses a thread its `submit` raises, and gRPC calls that in the
one thread that takes in all RPCs, which is then gone for good. To swallow the error there would not do either, as that
pool counts its idle threads by what it has been given and what is done: after each refusal it believes for ever in one
more than there is, and lets an RPC wait behind others for it.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog

READY = 4
"""Threads from the start on: with none, nothing would be answered until one is to be had."""

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[[], Any]
    future: "Future[Any]"

    def run(self) -> None:
        """Do the work and tell the future what came of it; nothing once it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - the future's, as of any executor
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Workers(Executor):
    """A daemon thread for each call under way, up to `most`; those that are there stay. Thread-safe.

    A call for which no thread is to be had is done by the first that is free; the next call asks for what is missing.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """`name` is what the names of the threads begin with."""
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    def start(self) -> None:
        """Start the threads that are always there. RuntimeError when they are not to be had."""
        with self._lock:
            self._ensure_threads(READY)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Have `fn` called by a thread. RuntimeError after `shutdown`, and never for want of a thread."""
        call = _Call(partial(fn, *args, **kwargs), Future())
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._unfinished += 1
            self._calls.put(call)
            try:
                self._ensure_threads(self._unfinished)
            except RuntimeError as error:
                log.warning("an RPC waits for want of a thread", threads=len(self._threads), error=error)
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more, and let the threads go when all that was taken, unless cancelled, is done. Idempotent."""
        with self._lock:
            self._closed = True
            left = self._taken_back() if cancel_futures else []
            for _ in self._threads:
                self._calls.put(None)
            threads = list(self._threads)
        for call in left:  # outside the lock: their callbacks are somebody else's
            call.future.cancel()
        if wait:
            for thread in threads:
                thread.join()

    def _ensure_threads(self, wanted: int) -> None:
        """See that there are so many, or `most`. The lock is held."""
        while len(self._threads) < min(wanted, self._most):
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _taken_back(self) -> list[_Call]:
        calls: list[_Call] = []
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return calls
            if call is not None:
                calls.append(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # it may hold secrets, and this thread waits for long
            with self._lock:
                self._unfinished -= 1
