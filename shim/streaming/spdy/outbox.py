"""The queue of bytes to send: buffers in order, large ones never copied, small ones put together."""

from shim.streaming.spdy.errors import SessionError

Buffer = bytes | memoryview
"""Payload."""

Queued = Buffer | bytearray
"""A buffer to send."""

_COPY_UP_TO = 4096
"""Bytes of one buffer that is put together. A bytes object costs 33 bytes and its place, however short it is."""


class Outbox:
    """The bytes to send. What is data, and what are control frames, have bounds of their own."""

    def __init__(self, *, room: int, max_control: int, max_answers: int) -> None:
        """`room`: bytes for data, a mark and no wall; the others as in `Limits`."""
        self._room = room
        self._max_control = max_control
        self._max_answers = max_answers
        self._buffers: list[Queued] = []
        self._control = 0
        self.size = 0

    @property
    def room(self) -> int:
        """Bytes of data that may still be queued, 0 or more."""
        return max(0, self._room - self.size)

    @property
    def congested(self) -> bool:
        """Return whether so many control frames wait that no more may be provoked."""
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
        """Queue a DATA frame. A short payload is copied: a view of it would be larger, and one more buffer to send."""
        if len(payload) <= _COPY_UP_TO:
            self._buffers.append(head + payload)
        else:
            self._buffers += (head, payload)
        self.size += len(head) + len(payload)

    def answer(self, frame: bytes) -> None:
        """Queue a control frame that the peer provoked. Raise SessionError when it goes on and does not read."""
        if self._control + len(frame) > self._max_answers:
            raise SessionError(f"more than {self._max_answers} bytes of answers wait for a peer that does not read")
        self.put(frame)

    def take(self) -> list[Queued]:
        """Return all that waits; it is the caller's now."""
        buffers, self._buffers = self._buffers, []
        self.size = self._control = 0
        return buffers
