"""The queue of bytes to send. Large buffers are not copied, small buffers are merged."""

from shim.streaming.spdy.errors import SessionError

Buffer = bytes | memoryview
"""Payload."""

Queued = Buffer | bytearray
"""A buffer to send."""

_COPY_UP_TO = 4096
"""Maximum bytes of a merged buffer. A bytes object takes 33 bytes in addition to its content."""


class Outbox:
    """The bytes to send, with separate limits for data and for control frames."""

    def __init__(self, *, room: int, max_control: int, max_answers: int) -> None:
        """`room` is the soft limit for data in bytes; see `Limits` for the rest."""
        self._room = room
        self._max_control = max_control
        self._max_answers = max_answers
        self._buffers: list[Queued] = []
        self._control = 0
        self.size = 0

    @property
    def room(self) -> int:
        """Return how many bytes of data may still be queued."""
        return max(0, self._room - self.size)

    @property
    def congested(self) -> bool:
        """Return whether reading must stop because too many control frames wait."""
        return self._control >= self._max_control

    def put(self, frame: bytes) -> None:
        """Queue a control frame."""
        last = self._buffers[-1] if self._buffers else None
        if isinstance(last, bytearray) and len(last) + len(frame) <= _COPY_UP_TO:
            last += frame
        else:
            self._buffers.append(bytearray(frame))
        self._control += len(frame)
        self.size += len(frame)

    def put_data(self, head: bytes, payload: memoryview) -> None:
        """Queue a DATA frame. A short payload is copied: a view would take more memory and a separate buffer."""
        if len(payload) <= _COPY_UP_TO:
            self._buffers.append(head + payload)
        else:
            self._buffers += (head, payload)
        self.size += len(head) + len(payload)

    def answer(self, frame: bytes) -> None:
        """Queue a control frame that the peer provoked. Raise SessionError if too many wait to be sent."""
        if self._control + len(frame) > self._max_answers:
            raise SessionError(f"more than {self._max_answers} bytes of answers wait for a peer that does not read")
        self.put(frame)

    def take(self) -> list[Queued]:
        """Remove and return all buffers."""
        buffers, self._buffers = self._buffers, []
        self.size = self._control = 0
        return buffers
