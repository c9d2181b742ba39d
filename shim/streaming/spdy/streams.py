"""The streams of a session: their states, numbers and order (2.3).

A stream has two directions and each has a state of its own; half-closed and closed are what the two together say.
"""

from collections.abc import Iterator
from enum import Enum, auto

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.flow import Account, ReceiveWindow, SendWindow
from shim.streaming.spdy.frames import MAX_ID


class Role(Enum):
    """Which side of the session this is; it decides who counts odd and who even."""

    CLIENT = 1
    SERVER = 2

    @property
    def first_id(self) -> int:
        """The first stream and ping of this side."""
        return self.value

    def opens(self, stream_id: int) -> bool:
        """Whether an id is one that this side gives."""
        return stream_id % 2 == self.value % 2


class Side(Enum):
    """The state of one direction."""

    WAITING = auto()  # SYN_REPLY has to come first
    OPEN = auto()
    FINISHED = auto()  # FIN was sent


class Part(Enum):
    """What may come in one direction."""

    REPLY = auto()
    HEADERS = auto()
    DATA = auto()


_NEXT: dict[tuple[Side, Part], Side | ResetStatus] = {
    (Side.WAITING, Part.REPLY): Side.OPEN,
    (Side.WAITING, Part.HEADERS): ResetStatus.PROTOCOL_ERROR,
    (Side.WAITING, Part.DATA): ResetStatus.PROTOCOL_ERROR,
    (Side.OPEN, Part.REPLY): ResetStatus.STREAM_IN_USE,
    (Side.OPEN, Part.HEADERS): Side.OPEN,
    (Side.OPEN, Part.DATA): Side.OPEN,
    (Side.FINISHED, Part.REPLY): ResetStatus.STREAM_ALREADY_CLOSED,
    (Side.FINISHED, Part.HEADERS): ResetStatus.STREAM_ALREADY_CLOSED,
    (Side.FINISHED, Part.DATA): ResetStatus.STREAM_ALREADY_CLOSED,
}


class Stream:
    """One stream that is not over, or whose bytes are not all acknowledged."""

    __slots__ = ("account", "receive_window", "receiving", "send_window", "sending", "stream_id")

    def __init__(self, stream_id: int, *, opened_here: bool, send_window: int, receive_window: int) -> None:
        self.stream_id = stream_id
        self.sending = Side.OPEN if opened_here else Side.WAITING
        self.receiving = Side.WAITING if opened_here else Side.OPEN
        self.send_window = SendWindow(send_window)
        self.receive_window = ReceiveWindow(receive_window)
        self.account = Account()

    @property
    def over(self) -> bool:
        """Both directions are finished."""
        return self.sending is Side.FINISHED and self.receiving is Side.FINISHED

    @property
    def finished_receiving(self) -> bool:
        """The peer sends nothing more."""
        return self.receiving is Side.FINISHED

    def expect_sendable(self, part: Part) -> None:
        """NotAllowed when `part` cannot be sent now."""
        if not isinstance(_NEXT[self.sending, part], Side):
            raise NotAllowed(
                f"stream {self.stream_id}: {part.name.lower()} cannot be sent, "
                f"its sending side is {self.sending.name.lower()}"
            )

    def sent(self, part: Part, *, fin: bool) -> None:
        """`part` was sent."""
        self.expect_sendable(part)
        self.sending = Side.FINISHED if fin else Side.OPEN

    def expect_received(self, part: Part) -> None:
        """StreamError when the peer may not send `part` now."""
        after = _NEXT[self.receiving, part]
        if isinstance(after, ResetStatus):
            state = self.receiving.name.lower()
            raise StreamError(self.stream_id, after, f"{part.name.lower()} while its receiving side is {state}")

    def received(self, part: Part, *, fin: bool) -> None:
        """The peer sent `part`."""
        self.expect_received(part)
        self.receiving = Side.FINISHED if fin else Side.OPEN


class StreamTable:
    """The streams by id, and the ids that were given."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._streams: dict[int, Stream] = {}
        self._next_id = role.first_id
        self.last_peer_id = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._streams.values()))

    def find(self, stream_id: int) -> Stream | None:
        """The stream, if there is one."""
        return self._streams.get(stream_id)

    def live(self, stream_id: int) -> Stream:
        """The stream for something local; NotAllowed when there is none."""
        stream = self._streams.get(stream_id)
        if stream is None:
            raise NotAllowed(f"stream {stream_id} is closed, or never was")
        return stream

    def known(self, stream_id: int) -> Stream:
        """The stream for something received; StreamError when there is none (2.3.7, status 2 of 2.6.3)."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            return stream
        if stream_id == 0:
            raise SessionError("a frame of stream 0")
        given = self._next_id - 1 if self._role.opens(stream_id) else self.last_peer_id
        if stream_id <= given:
            raise StreamError(stream_id, ResetStatus.PROTOCOL_ERROR, "is closed")
        raise StreamError(stream_id, ResetStatus.INVALID_STREAM, "was never opened")

    def take_peer_id(self, stream_id: int) -> None:
        """The peer opens a stream with this id; an error when the id is not the next in order (2.3.2)."""
        if stream_id in self._streams or (stream_id and stream_id == self.last_peer_id):
            raise StreamError(stream_id, ResetStatus.PROTOCOL_ERROR, "is opened twice")
        if self._role.opens(stream_id) or stream_id < self.last_peer_id or not stream_id:
            raise SessionError(f"stream {stream_id} cannot be opened by the peer after {self.last_peer_id}")
        self.last_peer_id = stream_id

    def next_own_id(self) -> int:
        """The id of a stream opened here; NotAllowed when all are used (ids do not wrap)."""
        if self._next_id > MAX_ID:
            raise NotAllowed("all stream ids of this session are used")
        stream_id = self._next_id
        self._next_id += 2
        return stream_id

    def count(self, *, opened_here: bool) -> int:
        """How many of the streams that are there were opened by this side, or by the peer."""
        return sum(self._role.opens(stream_id) is opened_here for stream_id in self._streams)

    def own_after(self, stream_id: int) -> list[Stream]:
        """The streams opened here after this one."""
        return [one for one in self if one.stream_id > stream_id and self._role.opens(one.stream_id)]

    def add(self, stream: Stream) -> None:
        """Keep a stream."""
        self._streams[stream.stream_id] = stream

    def remove(self, stream: Stream) -> None:
        """Forget a stream."""
        self._streams.pop(stream.stream_id, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._streams.clear()
