"""What waits to be sent: buffers in order, large ones never copied."""

from shim.streaming.spdy.errors import SessionError

Buffer = bytes | memoryview

_COPY_UP_TO = 4096


class Outbox:
    """The bytes to send, with a bound on those that the peer provoked."""

    def __init__(self, *, room: int, max_answers: int) -> None:
        """`room`: bytes for data, a mark and no wall; `max_answers`: bytes of answers that may wait."""
        self._room = room
        self._max_answers = max_answers
        self._buffers: list[Buffer] = []
        self._answers = 0
        self.size = 0

    @property
    def room(self) -> int:
        """Bytes of data that may still be queued, 0 or more."""
        return max(0, self._room - self.size)

    def put(self, buffer: Buffer) -> None:
        """Queue what this side wants to say."""
        self._buffers.append(buffer)
        self.size += len(buffer)

    def put_data(self, head: bytes, payload: memoryview) -> None:
        """Queue a DATA frame. A short payload is copied: a view of it would be larger, and one more buffer to send."""
        if len(payload) <= _COPY_UP_TO:
            self.put(head + payload)
        else:
            self.put(head)
            self.put(payload)

    def answer(self, buffer: bytes) -> None:
        """Queue what the peer asked for. SessionError when it asks and does not read."""
        self._answers += len(buffer)
        if self._answers > self._max_answers:
            raise SessionError(f"more than {self._max_answers} bytes of answers wait for a peer that does not read")
        self.put(buffer)

    def take(self) -> list[Buffer]:
        """All that waits; it is the caller's now."""
        buffers, self._buffers = self._buffers, []
        self.size = self._answers = 0
        return buffers
