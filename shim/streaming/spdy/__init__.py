"""SPDY/3.1 without input or output: bytes in, events out, for both roles.

`SPDY/3.1` is what kubectl, the kubelet, the API server and crictl upgrade to for exec, attach and port-forward.
Source: "SPDY Protocol - Draft 3.1" of the Chromium project; numbers such as 2.6.8 in this package are its sections.
HTTP over SPDY (its chapter 3) is not spoken here: headers of streams are what the application makes of them.

The server only ever is `Role.SERVER`. The client's half, `Role.CLIENT` with `open_stream`, is the peer that the tests
play: both roles are tested against each other.

The API::

    Connection(role: Role, limits: Limits | None = None)        Role.SERVER or Role.CLIENT

    receive_data(data: bytes) -> list[Event]                    raises nothing, whatever the bytes
    receive_eof() -> list[Event]                                the transport ended
    buffers_to_send() -> list[bytes | memoryview]               for sendmsg; or data_to_send() -> bytes
    queued: int                                                 bytes that these would give
    wants_data: bool                                            read from the transport only while it is true
    closed: bool                                                send what is queued, then close the transport

    open_stream(headers, *, fin=False, associated=0, priority=0) -> int
    reply(stream_id, headers=(), *, fin=False)                  before anything is sent on a stream of the peer
    send_headers(stream_id, headers, *, fin=False)
    send_window(stream_id) -> int                               how much send_data takes now
    send_data(stream_id, data, *, fin=False)                    fin alone: send_data(stream_id, b"", fin=True)
    acknowledge(stream_id, count)                               the application consumed so many bytes
    reset(stream_id, status=ResetStatus.CANCEL)
    ping() -> int
    goaway(status=GoAwayStatus.OK)

Headers are pairs `(name, value)` of str, names in lower case; a name with several values comes several times. What is
not possible (any more) raises `NotAllowed`: a peer may reset a stream at any moment, so whoever sends must expect it.
All changes may queue bytes: send what `buffers_to_send` gives after every call, also after `acknowledge`.

The owner's loop: while `wants_data`, read some bytes, `receive_data`, act on the events, send. A sender waits while
`send_window` is 0, and looks again after `WindowOpened` (stream 0: any stream) and after queued bytes were taken.
After `ConnectionTerminated`, or when `closed` is true, send what is queued and close the transport.

What a peer does wrong on one stream ends the stream: RST_STREAM to the peer, `StreamReset(by_peer=False)` here. What
makes the session unreadable, or breaks its limits, ends it: GOAWAY to the peer, `ConnectionTerminated` here.

Peers without flow control. Go's spdystream, which all those clients use, calls itself SPDY/3.1 and knows no windows:
it never sends WINDOW_UPDATE or SETTINGS, drops those it gets, and sends as much as the transport takes. Kept to the
letter, sending to it would stop for ever after 64 KiB, and receiving from it would reset its streams. Therefore:

- Sending: the windows of a peer are counted from the start and obeyed once it has shown that it has some, by
  SETTINGS_INITIAL_WINDOW_SIZE or a WINDOW_UPDATE. Until then `send_window` is bounded by `Limits.max_queued` alone, and
  the back-pressure is that of the transport. `Limits.trust_peer_windows` obeys them from the first byte.
- Receiving: only a peer that has shown windows is punished for exceeding this side's. Against all others memory is
  bounded by `wants_data`, which is false while a session window of bytes is not acknowledged: one stream that nobody
  reads then stops the whole session, as it does in spdystream itself.
- A server says nothing before the first frame of the client has come (see `Session.announce`).

DATA is delivered in the pieces in which it arrives, never collected, so its frames may be of any size.
"""

from shim.streaming.spdy.connection import Connection
from shim.streaming.spdy.errors import GoAwayStatus, NotAllowed, ProtocolError, ResetStatus
from shim.streaming.spdy.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PingAcked,
    PingReceived,
    StreamHalfClosed,
    StreamOpened,
    StreamReplied,
    StreamReset,
    WindowOpened,
)
from shim.streaming.spdy.headers import Headers
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Buffer
from shim.streaming.spdy.streams import Role

__all__ = [
    "Buffer",
    "Connection",
    "ConnectionTerminated",
    "DataReceived",
    "Event",
    "GoAwayReceived",
    "GoAwayStatus",
    "Headers",
    "HeadersReceived",
    "Limits",
    "NotAllowed",
    "PingAcked",
    "PingReceived",
    "ProtocolError",
    "ResetStatus",
    "Role",
    "StreamHalfClosed",
    "StreamOpened",
    "StreamReplied",
    "StreamReset",
    "WindowOpened",
]
