"""The thread pool that runs RPCs. It survives times in which the kernel refuses to start a thread.

`ThreadPoolExecutor` does not: its `submit` raises when the kernel refuses a thread, and gRPC calls `submit` in the only
thread that accepts RPCs, which then ends for good. Catching the error is not enough, because that pool derives its idle
threads from the work submitted and done. After each refusal it counts a thread that does not exist, and queues RPCs
for it.
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
"""Threads that always exist: without them, no RPC would be answered while the kernel refuses threads."""

IDLE_SECONDS = 10.0
"""A thread that has been idle for this long ends, so that the threads of a drain with a thousand stops go away."""

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[[], Any]
    future: "Future[Any]"

    def run(self) -> None:
        """Do the work and set the future's result; do nothing if the future was cancelled."""
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
    """A daemon thread for each call in progress, up to `most`. Thread-safe.

    A thread that gets no call for IDLE_SECONDS ends, while there are more than READY threads. The thread that became
    idle last gets the next call, so that the others can end. If no thread can be started, the call is queued for the
    first idle thread, and the next call tries again to start the missing threads.
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
        """Start the READY threads. Raise RuntimeError if they cannot be started."""
        with self._lock:
            while len(self._threads) < min(READY, self._most):
                self._start_thread(None)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Call `fn` in a thread. Raise RuntimeError after `shutdown`, never for lack of a thread."""
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
        """Accept no more calls, and end the threads when accepted calls are done or cancelled. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            threads = list(self._threads)
        for call in left:  # outside the lock: the futures' callbacks are foreign code
            call.future.cancel()
        if wait:
            for thread in threads:
                thread.join()

    def _ensure_threads(self) -> None:
        """Start a thread for each queued call, as far as possible. The caller holds the lock."""
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
            del call  # it may hold secrets, and this thread may stay idle for long
            call = self._next(inbox)

    def _next(self, inbox: "_Inbox") -> "_Call | None":
        """Wait for the next call; return None when this thread must end."""
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
