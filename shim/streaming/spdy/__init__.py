"""SPDY/3.1 without input or output, the server's side: bytes in, events out.

`SPDY/3.1` is what kubectl, the kubelet, the API server and crictl upgrade to for exec, attach and port-forward.
Source: "SPDY Protocol - Draft 3.1" of the Chromium project; numbers such as 2.6.8 in this package are its sections.
HTTP over SPDY (its chapter 3) is not spoken here: headers of streams are what the application makes of them. Nor are
streams that the server opens: no task has one. The client's side is in the tests, which play against this one.

The API::

    Connection(limits: Limits | None = None)

    receive_data(data: bytes) -> Iterator[Event]                raises nothing, whatever the bytes; take all events
    receive_eof() -> list[Event]                                the transport ended
    buffers_to_send() -> list[Queued]                           for sendmsg
    wants_data: bool                                            read from the transport only while it is true
    closed: bool                                                send what is queued, then close the transport

    reply(stream_id)                                            before anything is sent on a stream
    send_window(stream_id) -> int                               how much send_data takes now
    send_data(stream_id, data, *, fin=False)                    fin alone: send_data(stream_id, b"", fin=True)
    acknowledge(stream_id, count)                               the application is done with so many bytes
    reset(stream_id, status=ResetStatus.CANCEL)
    goaway()

Headers are pairs `(name, value)` of str, names in lower case; a name with several values comes several times. What is
not possible (any more) raises `NotAllowed`: a peer may reset a stream at any moment, so any sender must expect it.
All changes may queue bytes: send what `buffers_to_send` returns after every call, also after `acknowledge`.

The owner's loop: while `wants_data`, read some bytes, `receive_data`, act on the events, send. A sender waits while
`send_window` is 0, and asks again after `WindowOpened` (stream 0: any stream) and after queued bytes were taken.
After `ConnectionTerminated`, or when `closed` is true, send what is queued and close the transport.

What a peer does wrong on one stream ends the stream: RST_STREAM to the peer, `StreamReset(by_peer=False)` here. What
makes the session unreadable, or breaks its limits, ends it: GOAWAY to the peer, `ConnectionTerminated` here.

What a peer can make this side hold, do and queue is bounded by `Limits`. Payload is counted in `flow`, whose text says
how, and what is different for peers without flow control (Go's spdystream, which all those clients use). Header blocks
are bounded when they are inflated, and only those that open a stream are decoded. Control frames that wait to be sent
stop the reading, since more input could only provoke more of them.

- A server sends nothing before the first frame of the client has come (see `Session.announce`).
- DATA is delivered in the pieces in which it arrives, never collected, so its frames may be of any size.
"""

from shim.streaming.spdy.connection import Connection
from shim.streaming.spdy.errors import GoAwayStatus, NotAllowed, ProtocolError, ResetStatus
from shim.streaming.spdy.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from shim.streaming.spdy.headers import Headers
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Buffer, Queued

__all__ = [
    "Buffer",
    "Connection",
    "ConnectionTerminated",
    "DataReceived",
    "Event",
    "GoAwayStatus",
    "Headers",
    "Limits",
    "NotAllowed",
    "ProtocolError",
    "Queued",
    "ResetStatus",
    "StreamHalfClosed",
    "StreamOpened",
    "StreamReset",
    "WindowOpened",
]
