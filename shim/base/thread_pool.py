"""Reuse of threads: to wake one takes a tenth of the time it takes to start one."""

import queue
import threading
from collections.abc import Callable

IDLE_SECONDS = 10.0
"""For a thread without work, until it ends."""

Work = Callable[[], None]


class CachedThreadPool:
    """As many daemon threads as there is work at the same time. Thread-safe.

    Daemon threads, since work that hangs must not keep a server from ending. Work that raises ends its thread, and the
    exception is logged.
    """

    def __init__(self, name: str, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._name = name
        self._idle_seconds = idle_seconds
        self._idle: list[queue.SimpleQueue[Work]] = []
        """One for each idle thread, the last to become idle first, so that the others can reach their idle timeout."""

    def run(self, work: Work) -> None:
        """Call `work` in a thread. RuntimeError where none can be started."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True).start()
        inbox.put(work)

    def _serve(self, inbox: "queue.SimpleQueue[Work]") -> None:
        while (work := self._next(inbox)) is not None:
            work()
            del work  # it may hold secrets, and this thread waits for long
            self._idle.append(inbox)

    def _next(self, inbox: "queue.SimpleQueue[Work]") -> Work | None:
        """Wait for the next work; None after the idle timeout."""
        try:
            return inbox.get(timeout=self._idle_seconds)
        except queue.Empty:
            try:
                self._idle.remove(inbox)
            except ValueError:  # `run` has just taken the inbox, and is about to fill it
                return inbox.get()
            return None
