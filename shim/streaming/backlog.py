"""Output of exited processes that waits for slow clients, limited per client and in total."""

import threading
from collections import deque

from shim.domain.errors import ShimError
from shim.streaming.channel import Channel
from shim.streaming.spdy import Buffer
from shim.streaming.stalls import Stalled

BACKLOG_LIMIT = 4 << 20
"""Maximum bytes of an exited process's output that may wait for a client. Docker keeps less than 3 MiB: 1 MB of each
stream, and the contents of pipes and sockets."""

BACKLOGS_LIMIT = 64 << 20
"""Maximum bytes for all clients together."""

_ENTRY = 256
"""Bytes of memory per backlog entry, in addition to its output."""


class Room:
    """A memory budget that all backlogs share. Thread-safe."""

    def __init__(self, size: int = BACKLOGS_LIMIT) -> None:
        self._lock = threading.Lock()
        self._left = size

    def take(self, count: int) -> bool:
        """Take `count` bytes; return False if fewer are left."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True

    def give_back(self, count: int) -> None:
        """Return `count` bytes to the budget."""
        with self._lock:
            self._left += count


class Backlog:
    """Delivers the output of an exited process to a slow client in a separate thread."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Channel, bytearray]] = deque()
        self._size = 0
        self._complete = False
        self._failure: ShimError | None = None
        self._thread = threading.Thread(target=self._deliver, name="backlog", daemon=True)
        self._thread.start()

    def put(self, channel: Channel, data: Buffer) -> None:
        """Queue bytes for the channel. Raise Stalled if the backlog is full, and Cancelled as `finish` does."""
        with self._changed:
            self._check()
            merged = bool(self._waiting) and self._waiting[-1][0] is channel
            count = len(data) + (0 if merged else _ENTRY)
            if self._size + count > BACKLOG_LIMIT or not self._room.take(count):
                raise Stalled(
                    "the process has ended, and its client does not read the rest of its output: "
                    f"{self._size} bytes wait for it, and there is no room for more"
                )
            self._size += count
            if merged:
                self._waiting[-1][1].extend(data)
            else:
                self._waiting.append((channel, bytearray(data)))
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all output is written. Raise Cancelled if the client has disconnected."""
        with self._changed:
            self._complete = True
            self._changed.notify()
        self._thread.join()
        self._check()

    def fail(self, error: ShimError) -> None:
        """Drop the queued output; `put` and `finish` raise `error` from now on. Idempotent."""
        with self._changed:
            self._failure = self._failure or error
            while self._waiting:
                self._give_back(self._waiting.popleft()[1])
            self._changed.notify()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _deliver(self) -> None:
        try:
            while (taken := self._next()) is not None:
                channel, data = taken
                try:
                    channel.write(memoryview(data))
                finally:
                    with self._changed:
                        self._give_back(data)
        except ShimError as error:
            self.fail(error)

    def _next(self) -> tuple[Channel, bytearray] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._complete or self._failure)
            return self._waiting.popleft() if self._waiting else None

    def _give_back(self, data: bytearray) -> None:
        self._size -= len(data) + _ENTRY
        self._room.give_back(len(data) + _ENTRY)
