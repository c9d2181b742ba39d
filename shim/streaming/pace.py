"""How much of a client's bytes is worked through at a time, so that no client holds up other threads.

What a byte costs is the client's choice: bytes of large frames cost next to nothing, a read full of empty frames tens
of milliseconds. A thread that needs the interpreter waits for one that computes for `SWITCH_INTERVAL` at most, but once
more for each other one that computes, and an RPC needs it some twenty times, as it passes from thread to thread. So a
session reads less at a time the longer its reads take, and sessions whose reads take long work one at a time; a new one
counts among them until its first read. The time is that of the processor, so that a busy machine makes no session seem
slow.
"""

import threading
import time
from collections import deque

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that computes lets another one go on, set for the process. With Python's own 5 ms one
session of tiny frames held RPCs up for 170 ms. Costs no throughput (`make bench-hostile`, `make bench-streaming`)."""

MIN_READ = 4 * 1024
MAX_READ = 64 * 1024
"""Bytes read at a time."""

LONG = 0.002
"""Seconds of a read after which less is read."""

SLOW = 0.0005
"""Seconds of a read from which on sessions take turns."""


class Turns:
    """Lets one thread at a time go on, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Wait for those that came before; their turns must be short."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def give(self) -> None:
        """Pass the turn to the next one."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_TURNS = Turns()
"""Of all sessions of the process."""


class Pace:
    """The reads of one session; used by one thread."""

    def __init__(self, turns: Turns = _TURNS) -> None:
        self._turns = turns
        self._slow = True
        self.size = MIN_READ
        """Bytes to read next."""

    def begin(self) -> float:
        """Begin a read, with `end` to follow whatever happens; return what that takes."""
        if self._slow:
            self._turns.take()
        return time.thread_time()

    def end(self, began: float) -> None:
        """End the read, when its bytes have been worked through."""
        seconds = time.thread_time() - began
        if self._slow:
            self._turns.give()
        self.note(seconds)

    def note(self, seconds: float) -> None:
        """Choose the next size by how long a read has taken."""
        self._slow = seconds >= SLOW
        if seconds > LONG:
            self.size = max(MIN_READ, self.size // 2)
        elif not self._slow:
            self.size = min(MAX_READ, self.size * 2)
