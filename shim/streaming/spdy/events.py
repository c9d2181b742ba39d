"""Events of a connection, in the order of the received bytes."""

from dataclasses import dataclass

from shim.streaming.spdy.headers import Headers


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream. Call `reply` before sending on it, or `reset`."""

    stream_id: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes of a stream, never empty; frame boundaries are not reported.

    `data` is a view of the bytes passed to `receive_data` and keeps all of them in memory. It counts against the
    windows until its length is acknowledged.
    """

    stream_id: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class StreamHalfClosed:
    """The peer has finished sending on this stream (FIN), but may still receive."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """Both directions of the stream are closed. Its bytes need no acknowledgement."""

    stream_id: int
    status: int  # a ResetStatus, or an unknown number
    by_peer: bool  # False: the server has reset it after an error of the peer


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer has opened the send window of this stream, or of all streams for stream_id 0."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class ConnectionTerminated:
    """The last event: all streams are closed. Send the queued bytes, then close the transport."""

    status: int
    reason: str


Event = StreamOpened | DataReceived | StreamHalfClosed | StreamReset | WindowOpened | ConnectionTerminated
