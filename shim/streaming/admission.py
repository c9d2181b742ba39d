"""How many sessions there are at once: each has threads, descriptors and up to 2 MiB of memory."""

import threading
from collections import Counter

from shim.streaming.sessions import Task


class Admission:
    """The sessions that are open, in all and of each container or pod. Thread-safe."""

    def __init__(self, *, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def enter(self, task: Task) -> str:
        """Count a session; the reason why not, when there are too many."""
        with self._lock:
            if self._open.total() >= self._most:
                return f"{self._most} streaming sessions are open, the most that streaming_max_sessions allows"
            if self._open[task.target] >= self._most_each:
                return (
                    f"{self._most_each} streaming sessions of {task.target} are open, "
                    "the most that streaming_max_sessions_per_container allows"
                )
            self._open[task.target] += 1
            return ""

    def leave(self, task: Task) -> None:
        """Count one session less."""
        with self._lock:
            self._open[task.target] -= 1
            if not self._open[task.target]:
                del self._open[task.target]
