"""Events that a connection reports to its owner. Values only; the order of events is the order of the bytes."""

from dataclasses import dataclass

from shim.streaming.spdy.headers import Headers


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream. Answer it with `reply` before anything is sent on it, or with `reset`."""

    stream_id: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes of one stream, never empty; where frames begin and end is not reported.

    `data` is a view of the bytes given to `receive_data` and keeps all of them alive. Once it is consumed,
    `acknowledge` its length; until then it counts against the windows.
    """

    stream_id: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class StreamHalfClosed:
    """The peer sends nothing more on this stream (FIN); it may still receive."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The stream is gone, both ways; bytes of it that were not acknowledged need not be."""

    stream_id: int
    status: int  # a ResetStatus, or a number this side does not know
    by_peer: bool  # False: ended here, because the peer broke a rule on it


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer lets more be sent: on this stream, or with stream_id 0 on any. See `send_window`."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class ConnectionTerminated:
    """The last event: send what is queued, then close the transport. All streams are gone."""

    status: int
    reason: str


Event = StreamOpened | DataReceived | StreamHalfClosed | StreamReset | WindowOpened | ConnectionTerminated
