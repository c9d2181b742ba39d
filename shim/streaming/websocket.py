"""Sessions over WebSocket: numbered channels, or a tunnel for SPDY.

The first byte of a message is the number of its channel. Sources: RFC 6455, and the `channel.k8s.io` subprotocols as
used by kubectl, the API server and the kubelet. WebSocket has no flow control windows, so reading stops while too many
bytes wait for slow readers or slow clients.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.events import Event as Frame
from wsproto.utilities import RemoteProtocolError

from shim.streaming import spdy
from shim.streaming.spdy import (
    Buffer,
    ConnectionTerminated,
    DataReceived,
    Event,
    GoAwayStatus,
    Headers,
    Limits,
    NotAllowed,
    Queued,
    ResetStatus,
    StreamHalfClosed,
    StreamOpened,
)

MAX_HELD = 1 << 20
"""Reading stops while this many bytes wait for slow readers."""

MAX_QUEUED = 256 * 1024
"""Writing and reading stop while this many bytes wait for a slow client. Reading stops because pings are answered."""

CLOSE_CHANNEL = 255
"""The channel of `v5.channel.k8s.io` on which the client names a channel that it closes."""

_COPY_UP_TO = 4096
"""Maximum bytes of a buffer that merges short frames."""

_NORMAL_CLOSURE, _PROTOCOL_ERROR = 1000, 1002


@dataclass(slots=True)
class _Piece:
    """A part of a message."""

    data: bytes
    first: bool
    last: bool


class _Messages:
    """The frames and messages of a connection."""

    def __init__(self) -> None:
        self._protocol = Connection(ConnectionType.SERVER)
        self._out: list[Queued] = []
        self._inside = False  # a message is incomplete
        self.queued = 0
        self.ended = ""  # the reason; empty while the connection is open

    def receive(self, data: bytes) -> Iterator[_Piece]:
        """Yield the pieces of messages in `data`, and answer pings. Afterwards `ended` may be set.

        Decoding is lazy, so that a read full of tiny messages is never in memory as objects. It stops as soon as the
        connection has ended, also if the caller ends it because of a piece.
        """
        if self.over():
            return
        try:
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                match event:
                    case TextMessage() | BytesMessage():
                        yield self._piece(event)
                    case Ping():
                        self._send(event.response())
                    case CloseConnection():
                        self._take_close(event)
                if self.over():
                    return
        except RemoteProtocolError as error:
            self.end(f"not WebSocket: {error}")

    def over(self) -> bool:
        """Return whether the connection has ended."""
        return bool(self.ended)

    def _piece(self, message: TextMessage | BytesMessage) -> _Piece:
        data = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
        first, self._inside = not self._inside, not message.message_finished
        return _Piece(data, first=first, last=message.message_finished)

    def _take_close(self, event: CloseConnection) -> None:
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            self._send(event.response())
            self.ended = f"closed with code {event.code}"
        else:  # an answer to the server's close, or a frame that wsproto could not parse
            self.end(f"closed with code {event.code}")

    def send(self, data: bytes, *, text: bool = False) -> None:
        """Queue a message, unless the connection has ended."""
        self._send(TextMessage(data.decode("ascii")) if text else BytesMessage(data))

    def close(self, code: int) -> None:
        """Queue a close frame. Idempotent."""
        self._send(CloseConnection(code))

    def end(self, why: str) -> None:
        """End the connection because the client has violated the protocol. Idempotent."""
        self.close(_PROTOCOL_ERROR)
        self.ended = self.ended or why

    def take(self) -> list[Queued]:
        """Remove and return all queued buffers."""
        out, self._out, self.queued = self._out, [], 0
        return out

    def _send(self, event: Frame) -> None:
        """Queue an event, unless the connection is closing. After the client's close only a close may be sent."""
        closes = isinstance(event, CloseConnection)
        if self._protocol.state is ConnectionState.OPEN or (
            closes and self._protocol.state is ConnectionState.REMOTE_CLOSING
        ):
            self._put(self._protocol.send(event))

    def _put(self, data: bytes) -> None:
        last = self._out[-1] if self._out else None
        if isinstance(last, bytearray) and len(last) + len(data) <= _COPY_UP_TO:
            last += data
        else:  # answers to pings are short, and separate objects would take twenty times their size
            self._out.append(data if len(data) > _COPY_UP_TO else bytearray(data))
        self.queued += len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a connection, which the request determines."""

    headers: Mapping[int, Headers]
    """The headers of the equivalent SPDY streams, by channel number."""
    greetings: Mapping[int, bytes] = field(default_factory=dict)
    """First messages by channel number. An empty message means that the server is ready."""
    base64: bool = False
    closes: bool = False
    """Whether the client can close a channel (`v5`)."""


class ChannelWire:
    """The `channel.k8s.io` protocols as a `shim.streaming.wire.Wire`."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._messages = _Messages()
        self._open = set(channels.headers)
        self._receiving = set(channels.headers)
        self._held = 0
        self._begun = False
        self._current = -1  # the channel of the current message
        self._rest = b""  # an incomplete group of base64

    def receive_data(self, data: bytes) -> Iterator[Event]:
        """Yield the events of these bytes."""
        yield from self._begin()
        for piece in self._messages.receive(data):
            yield from self._events(piece)
        if self._messages.ended:
            yield ConnectionTerminated(GoAwayStatus.OK, self._messages.ended)

    def receive_eof(self) -> list[Event]:
        """Return the events of the end of the connection."""
        self._messages.ended = self._messages.ended or "the connection ended"
        return [ConnectionTerminated(GoAwayStatus.OK, self._messages.ended)]

    @property
    def fixed(self) -> bool:
        """Return whether the set of streams is fixed: the client can neither open nor close single streams."""
        return self._begun

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the connection."""
        return self._held < MAX_HELD and self._messages.queued < MAX_QUEUED and not self.closed

    @property
    def closed(self) -> bool:
        """Return whether the owner must send the queued bytes and then close."""
        return self._messages.over()

    def buffers_to_send(self) -> list[Queued]:
        """Remove and return all queued buffers."""
        return self._messages.take()

    def reply(self, stream_id: int) -> None:
        """Accept a stream; channels need no answer."""

    def send_window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` takes now."""
        if stream_id not in self._open or self.closed:
            raise NotAllowed(f"channel {stream_id} is closed")
        return max(0, MAX_QUEUED - self._messages.queued)

    def send_data(self, stream_id: int, data: Buffer, *, fin: bool = False) -> None:
        """Queue bytes. `fin` ends the channel only here: the protocol has no half-close to notify the client."""
        self.send_window(stream_id)
        if data:
            self._send(stream_id, data)
        if fin:
            self._open.discard(stream_id)

    def acknowledge(self, stream_id: int, count: int) -> None:  # noqa: ARG002 - all channels share a bound
        """Record that the application has consumed bytes."""
        self._held -= count

    def reset(self, stream_id: int, status: ResetStatus = ResetStatus.CANCEL) -> None:  # noqa: ARG002 - not sent
        """Close both directions of a channel here. The protocol has no message for this."""
        self._open.discard(stream_id)
        self._receiving.discard(stream_id)

    def goaway(self) -> None:
        """Announce that no further data will be sent."""
        self._messages.close(_NORMAL_CLOSURE)

    def _begin(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        for number, greeting in self._channels.greetings.items():
            self._send(number, greeting)
        return [StreamOpened(number, headers) for number, headers in self._channels.headers.items()]

    def _send(self, number: int, data: Buffer) -> None:
        if self._channels.base64:
            self._messages.send(b"%d" % number + base64.b64encode(data), text=True)
        else:
            self._messages.send(bytes((number,)) + data)

    def _events(self, piece: _Piece) -> list[Event]:
        data = piece.data
        if piece.first or self._current < 0:
            if not data:
                return []
            self._current = data[0] - (ord("0") if self._channels.base64 else 0)
            data = data[1:]
        number = self._current
        if piece.last:
            self._current = -1
        if number == CLOSE_CHANNEL and self._channels.closes:
            return self._close_channels(data[:1])
        if self._channels.base64:
            data = self._decode(data, last=piece.last)
        # Unknown channels are ignored, as in all servers of this protocol.
        if not data or number not in self._receiving:
            return []
        self._held += len(data)
        return [DataReceived(number, memoryview(data))]

    def _close_channels(self, numbers: bytes) -> list[Event]:
        closed = [number for number in numbers if number in self._receiving]
        self._receiving.difference_update(closed)
        return [StreamHalfClosed(number) for number in closed]

    def _decode(self, data: bytes, *, last: bool) -> bytes:
        data = self._rest + data
        whole = len(data) if last else len(data) // 4 * 4
        self._rest = data[whole:]
        try:
            return base64.b64decode(data[:whole], validate=True)
        except binascii.Error:
            self._messages.end("a message that is not base64")
            return b""


class TunnelWire(spdy.Connection):
    """SPDY in the payload of binary messages, for port-forward over WebSocket."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._messages = _Messages()

    def receive_data(self, data: bytes) -> Iterator[Event]:
        """Yield the events of these bytes."""
        for piece in self._messages.receive(data):
            yield from super().receive_data(piece.data)
        if self._messages.ended:
            yield from super().receive_eof()

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the connection."""
        return super().wants_data and self._messages.queued < MAX_QUEUED

    def buffers_to_send(self) -> list[Queued]:
        """Remove and return all queued buffers."""
        if inner := super().buffers_to_send():
            self._messages.send(b"".join(inner))
        return self._messages.take()
