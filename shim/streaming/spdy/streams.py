"""The streams of a session: their states, ids and order (2.3). The client opens all streams.

Each direction of a stream has a state. Together they determine whether the stream is open, half-closed or closed.
"""

from enum import Enum, auto

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.flow import StreamFlow


class Side(Enum):
    """The state of one direction."""

    WAITING = auto()  # SYN_REPLY must be sent first
    OPEN = auto()
    FINISHED = auto()  # FIN was sent


class Part(Enum):
    """A part of a stream that can be sent."""

    REPLY = auto()
    DATA = auto()


_SENDABLE = {(Side.WAITING, Part.REPLY), (Side.OPEN, Part.DATA)}


class Stream:
    """A stream that is not closed, or has unacknowledged bytes."""

    __slots__ = ("flow", "receiving", "sending", "stream_id")

    def __init__(self, stream_id: int, flow: StreamFlow) -> None:
        self.stream_id = stream_id
        self.flow = flow
        self.sending = Side.WAITING
        self.receiving = Side.OPEN

    @property
    def over(self) -> bool:
        """Return whether both directions are closed."""
        return self.sending is Side.FINISHED and self.receiving is Side.FINISHED

    @property
    def finished_receiving(self) -> bool:
        """Whether the peer has finished sending."""
        return self.receiving is Side.FINISHED

    def expect_sendable(self, part: Part) -> None:
        """Raise NotAllowed if `part` cannot be sent now."""
        if (self.sending, part) not in _SENDABLE:
            raise NotAllowed(
                f"stream {self.stream_id}: {part.name.lower()} cannot be sent, "
                f"its sending side is {self.sending.name.lower()}"
            )

    def sent(self, part: Part, *, fin: bool) -> None:
        """Record that `part` was sent."""
        self.expect_sendable(part)
        self.sending = Side.FINISHED if fin else Side.OPEN

    def expect_receiving(self) -> None:
        """Raise StreamError if the peer has already sent FIN."""
        if self.finished_receiving:
            raise StreamError(self.stream_id, ResetStatus.STREAM_ALREADY_CLOSED, "a frame after FIN")

    def finish_receiving(self) -> None:
        """Record that the peer has finished sending."""
        self.receiving = Side.FINISHED


class StreamTable:
    """The streams by id, and the last id used."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self.last_id = 0

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, stream_id: int) -> Stream | None:
        """Return the stream; None if it does not exist."""
        return self._streams.get(stream_id)

    def live(self, stream_id: int) -> Stream:
        """Return the stream for a local call. Raise NotAllowed if it does not exist."""
        stream = self._streams.get(stream_id)
        if stream is None:
            raise NotAllowed(f"stream {stream_id} is closed, or never was")
        return stream

    def known(self, stream_id: int) -> Stream:
        """Return the stream of a received frame. Raise StreamError if it does not exist (2.3.7, status 2 of 2.6.3)."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        if stream_id == 0:
            raise SessionError("a frame of stream 0")
        if stream_id % 2 and stream_id <= self.last_id:
            raise StreamError(stream_id, ResetStatus.PROTOCOL_ERROR, "is closed")
        raise StreamError(stream_id, ResetStatus.INVALID_STREAM, "was never opened")

    def take_id(self, stream_id: int) -> None:
        """Record that the client opens a stream. Raise StreamError or SessionError unless ids increase (2.3.2)."""
        if stream_id in self._streams or (stream_id and stream_id == self.last_id):
            raise StreamError(stream_id, ResetStatus.PROTOCOL_ERROR, "is opened twice")
        if not stream_id % 2 or stream_id < self.last_id:
            raise SessionError(f"stream {stream_id} cannot be opened by the client after {self.last_id}")
        self.last_id = stream_id

    def add(self, stream: Stream) -> None:
        """Add a stream."""
        self._streams[stream.stream_id] = stream

    def remove(self, stream: Stream) -> None:
        """Remove a stream."""
        self._streams.pop(stream.stream_id, None)

    def clear(self) -> None:
        """Remove all streams."""
        self._streams.clear()
