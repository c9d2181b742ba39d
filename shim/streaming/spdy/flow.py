"""Flow control windows (2.6.8). A window belongs to one direction of a stream, or of the session."""

from shim.streaming.spdy.errors import NotAllowed
from shim.streaming.spdy.frames import MAX_ID

INITIAL_WINDOW = 64 * 1024
MAX_WINDOW = MAX_ID


class SendWindow:
    """What the peer lets this side send, in bytes. It may be negative (2.6.8, "Initial Flow Control Window Size")."""

    __slots__ = ("left",)

    def __init__(self, size: int = INITIAL_WINDOW) -> None:
        self.left = size

    def spend(self, count: int) -> None:
        """`count` bytes were sent."""
        self.left -= count

    def widen(self, delta: int) -> bool:
        """Move by `delta`, which may be negative; False when that is more than a window can be."""
        self.left += delta
        return self.left <= MAX_WINDOW


class ReceiveWindow:
    """What this side lets the peer send, in bytes."""

    __slots__ = ("_given", "_size", "left")

    def __init__(self, size: int) -> None:
        self.left = size
        self._size = size
        self._given = 0  # released, and not yet told to the peer

    def charge(self, count: int) -> bool:
        """The peer sent `count` bytes; False when they are more than it was let."""
        self.left -= count
        return self.left >= 0

    def release(self, count: int) -> int:
        """`count` bytes are consumed. The delta to tell the peer now, or 0.

        It is told when half of the window has come together: often enough that a peer whose bytes are consumed never
        stops for it, and one small frame for many bytes.
        """
        self._given += count
        if self._given * 2 < self._size:
            return 0
        delta, self._given = self._given, 0
        self.left += delta
        return delta


class Account:
    """The bytes of one stream that wait for the application."""

    __slots__ = ("held", "owed")

    def __init__(self) -> None:
        self.owed = 0  # charged to the windows and not released: delivered, or announced by a frame still arriving
        self.held = 0  # delivered and not acknowledged

    def consume(self, count: int) -> None:
        """The application is done with `count` bytes; NotAllowed when it did not get so many."""
        if not 0 <= count <= self.held:
            raise NotAllowed(f"acknowledging {count} bytes of {self.held} that were delivered")
        self.held -= count
        self.owed -= count
