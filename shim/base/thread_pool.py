"""A pool of threads: waking a thread takes a tenth of the time of starting a thread."""

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

IDLE_SECONDS = 10.0
"""An idle thread ends after this time."""

T = TypeVar("T")
Work = Callable[[], None]
_Inbox: TypeAlias = "queue.SimpleQueue[Work | None]"


def run_into(future: "Future[T]", work: Callable[[], T]) -> None:
    """Call `work`, and set its result or its error in `future`."""
    try:
        result = work()
    except BaseException as failure:  # noqa: BLE001 - raised again by the future
        future.set_exception(failure)
    else:
        future.set_result(result)


class ThreadPool:
    """Runs work in idle daemon threads, and starts a thread when none is idle. Thread-safe.

    The thread that became idle last gets the next work, so that the others can time out. The threads are daemons, so
    that work which hangs does not keep the server from exiting. If work raises, its thread ends and the exception is
    logged.
    """

    def __init__(self, name: str, *, most: int = sys.maxsize, ready: int = 0, numbered: bool = False) -> None:
        """`name` is the name of the threads, with a number if `numbered`.

        At most `most` threads run queued work. `start` starts `ready` threads, and as many never time out.
        """
        self._name = name
        self._most = most
        self._ready = ready
        self._numbered = numbered
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._idle: list[_Inbox] = []
        self._queued: deque[Work] = deque()
        self._closed = False

    def start(self) -> None:
        """Start the threads that never time out. Raise RuntimeError if they cannot be started."""
        with self._lock:
            while len(self._threads) < self._ready:
                self._idle.append(self._start_thread(None))

    def run(self, work: Work) -> None:
        """Call `work` in a thread. Raise RuntimeError if none is idle and none can be started."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            else:
                self._start_thread(work)

    def enqueue(self, work: Work) -> RuntimeError | None:
        """Call `work` in a thread, now or when a thread is free. Raise RuntimeError after `close`.

        Return the error if a thread was missing and could not be started. The next call tries again to start it.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._idle:
                self._idle.pop().put(work)
                return None
            self._queued.append(work)
            try:
                while self._queued and len(self._threads) < self._most:
                    self._start_thread(self._queued[0])
                    self._queued.popleft()
            except RuntimeError as error:
                return error
            return None

    def close(self) -> None:
        """Refuse further work, and end the threads once the queued work is done. Idempotent."""
        with self._lock:
            self._closed = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()

    def _start_thread(self, first: Work | None) -> _Inbox:
        inbox: _Inbox = queue.SimpleQueue()
        if first is not None:
            inbox.put(first)
        name = f"{self._name}_{self._started}" if self._numbered else self._name
        thread = threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True)
        thread.start()
        self._started += 1
        self._threads.add(thread)
        return inbox

    def _serve(self, inbox: _Inbox) -> None:
        try:
            work = self._receive(inbox)
            while work is not None:
                work()
                del work  # it may hold secrets, and this thread may wait for long
                work = self._next(inbox)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self, inbox: _Inbox) -> Work | None:
        """Take queued work, or wait for work; None if this thread must end."""
        with self._lock:
            if self._queued:
                return self._queued.popleft()
            if self._closed:
                return None
            self._idle.append(inbox)
        return self._receive(inbox)

    def _receive(self, inbox: _Inbox) -> Work | None:
        while True:
            try:
                return inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle and len(self._threads) > self._ready:
                        self._idle.remove(inbox)
                        self._threads.discard(threading.current_thread())
                        return None
