"""Limits how many bytes of a client are processed at a time, so that no client delays other threads.

The cost of a byte depends on the client: large frames cost almost nothing per byte, but a read full of empty frames
takes tens of milliseconds. A thread that needs the interpreter waits up to `SWITCH_INTERVAL` for each other computing
thread, and an RPC needs the interpreter about twenty times, because several threads handle it. Therefore
- a session with long reads reads fewer bytes at a time, and
- sessions with slow reads take turns. A new session takes turns until its first read.
Reads are measured in CPU time, so that sessions do not seem slow on a busy machine.
"""

import threading
import time
from collections import deque

SWITCH_INTERVAL = 0.0005
"""Seconds after which a computing thread yields the interpreter, set for the whole process. With Python's default of
5 ms, a session of tiny frames delayed RPCs by 170 ms. The lower value costs no throughput (`make bench-hostile`, `make
bench-streaming`)."""

MIN_READ = 4 * 1024
MAX_READ = 64 * 1024
"""Maximum bytes of a read."""

LONG = 0.002
"""CPU seconds of a read after which the next read is smaller."""

SLOW = 0.0005
"""CPU seconds of a read from which a session takes turns with other slow sessions."""


class Turns:
    """A fair mutex, which threads get in the order of their requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Wait for the turn of this thread, after all earlier threads. A turn must be short."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def give(self) -> None:
        """Pass the turn to the next thread."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_TURNS = Turns()
"""Shared by all sessions of the process."""


class Pace:
    """Chooses the size of each read of a session. Not thread-safe."""

    def __init__(self, turns: Turns = _TURNS) -> None:
        self._turns = turns
        self._slow = True
        self.size = MIN_READ
        """Maximum bytes of the next read."""

    def begin(self) -> float:
        """Begin a read; return the argument for `end`, which must always be called."""
        if self._slow:
            self._turns.take()
        return time.thread_time()

    def end(self, began: float) -> None:
        """End the read after its bytes were processed."""
        seconds = time.thread_time() - began
        if self._slow:
            self._turns.give()
        self.note(seconds)

    def note(self, seconds: float) -> None:
        """Choose the size of the next read from the CPU time of this read."""
        self._slow = seconds >= SLOW
        if seconds > LONG:
            self.size = max(MIN_READ, self.size // 2)
        elif not self._slow:
            self.size = min(MAX_READ, self.size * 2)
