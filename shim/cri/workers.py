"""The thread pool that runs RPCs, on a node that may have no thread left for a while.

`ThreadPoolExecutor` does not suffice: where the kernel refuses a thread its `submit` raises, and gRPC calls that in the
one thread that accepts all RPCs, which then ends for good. To swallow the error there would not do either, as that
pool counts its idle threads by what was submitted and what is done: after each refusal it counts for ever one thread
more than there is, and queues an RPC behind others for it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

import structlog

READY = 4
"""Threads from the start on: with none, nothing would be answered until one can be started."""

IDLE_SECONDS = 10.0
"""For a thread without work, until it ends: a node that was drained keeps none of a thousand stops."""

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[[], Any]
    future: "Future[Any]"

    def run(self) -> None:
        """Do the work and set the result of the future; do nothing if it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised by the future, as with any executor
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_Inbox: TypeAlias = "queue.SimpleQueue[_Call | None]"


class Workers(Executor):
    """A daemon thread for each call under way, up to `most`. Thread-safe.

    A thread waits for further calls, and ends when none has come for IDLE_SECONDS and there are more than READY. The
    thread that became idle last gets the next call, so that the others may end. A call for which no thread can be
    started is queued for the first that is idle; the next call tries again to start the missing threads.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """Run at most `most` threads, whose names begin with `name`."""
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._idle: list[_Inbox] = []
        self._waiting: deque[_Call] = deque()
        self._closed = False

    def start(self) -> None:
        """Start the threads that are always there. RuntimeError when they cannot be started."""
        with self._lock:
            while len(self._threads) < min(READY, self._most):
                self._start_thread(None)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Have `fn` called by a thread. RuntimeError after `shutdown`, and never for lack of a thread."""
        call = _Call(partial(fn, *args, **kwargs), Future())
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._idle:
                self._idle.pop().put(call)
            else:
                self._waiting.append(call)
                self._ensure_threads()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more, and end the threads when what was accepted is done, or cancelled. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            threads = list(self._threads)
        for call in left:  # outside the lock: their callbacks are foreign code
            call.future.cancel()
        if wait:
            for thread in threads:
                thread.join()

    def _ensure_threads(self) -> None:
        """Start a thread for each call that waits, as far as possible. The lock is held."""
        try:
            while self._waiting and len(self._threads) < self._most:
                self._start_thread(self._waiting[0])
                self._waiting.popleft()
        except RuntimeError as error:
            log.warning("RPC queued: no worker thread available", threads=len(self._threads), error=error)

    def _start_thread(self, first: "_Call | None") -> None:
        name = f"{self._name}_{self._started}"
        thread = threading.Thread(target=self._work, args=(first,), name=name, daemon=True)
        thread.start()
        self._started += 1
        self._threads.add(thread)

    def _work(self, call: "_Call | None") -> None:
        inbox: _Inbox = queue.SimpleQueue()
        if call is None:
            call = self._next(inbox)
        while call is not None:
            call.run()
            del call  # it may hold secrets, and this thread waits for long
            call = self._next(inbox)

    def _next(self, inbox: "_Inbox") -> "_Call | None":
        """Wait for the next call; None when this thread is to end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._closed:
                self._threads.discard(threading.current_thread())
                return None
            self._idle.append(inbox)
        while True:
            try:
                return inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle and len(self._threads) > READY:
                        self._idle.remove(inbox)
                        self._threads.discard(threading.current_thread())
                        return None
