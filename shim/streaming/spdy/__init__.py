"""The server's side of SPDY/3.1 without I/O: bytes in, events out.

kubectl, the kubelet, the API server and crictl upgrade to `SPDY/3.1` for exec, attach and port-forward. Source: "SPDY
Protocol - Draft 3.1" of the Chromium project; numbers such as 2.6.8 in this package are its sections. HTTP over SPDY
(chapter 3) and streams opened by the server are not implemented, because no task uses them. The tests contain an
implementation of the client's side.

The API::

    Connection(limits: Limits | None = None)

    receive_data(data: bytes) -> Iterator[Event]                never raises; consume all events
    receive_eof() -> list[Event]                                the transport has ended
    buffers_to_send() -> list[Queued]                           for sendmsg
    wants_data: bool                                            read from the transport only while it is true
    closed: bool                                                send queued bytes, then close the transport

    reply(stream_id)                                            required before data is sent on a stream
    send_window(stream_id) -> int                               bytes that send_data accepts now
    send_data(stream_id, data, *, fin=False)                    fin alone: send_data(stream_id, b"", fin=True)
    acknowledge(stream_id, count)                               the application has finished with `count` bytes
    reset(stream_id, status=ResetStatus.CANCEL)
    goaway()

Headers are pairs `(name, value)` of str with lower case names; a name with several values occurs several times. A call
that is impossible in the current state raises `NotAllowed`. A peer may reset a stream at any moment, so every sender
must expect it. Every call may queue bytes, even `acknowledge`: send the result of `buffers_to_send` after it.

The owner's loop: while `wants_data`, read bytes, call `receive_data`, process the events, send. A sender waits while
`send_window` is 0, and calls it again after `WindowOpened` (stream 0: any stream) and after queued bytes were sent.
After `ConnectionTerminated`, or when `closed` is true, send the queued bytes and close the transport.

A protocol error on a stream ends the stream: RST_STREAM to the peer, `StreamReset(by_peer=False)` here. An error that
makes the session unreadable, or violates its limits, ends the session: GOAWAY to the peer, `ConnectionTerminated` here.

`Limits` limits the memory, the work and the queues that a peer can cause. `flow` counts payload; its docstring explains
the counts, also for peers without flow control (Go's spdystream, which all these clients use). The size of header
blocks is limited when they are inflated, and only blocks that open a stream are decoded. Reading stops while many
control frames wait to be sent, because more input could provoke more of them.

- The server sends nothing before the first frame of the client (see `Session.announce`).
- DATA is delivered in pieces as it arrives and never collected, so DATA frames may have any size.
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
