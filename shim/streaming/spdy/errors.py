"""Status codes of SPDY/3.1 and what is raised over them.

`Connection.receive_data` raises none of these: what a peer does wrong becomes frames and events. `NotAllowed` is what
the local side can meet, because a peer may reset a stream at the moment something is about to be sent on it.
"""

from enum import IntEnum

from shim.domain.errors import ShimError


class ResetStatus(IntEnum):
    """Why one stream ends, carried by RST_STREAM (2.6.3)."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7
    STREAM_IN_USE = 8
    STREAM_ALREADY_CLOSED = 9
    FRAME_TOO_LARGE = 11


class GoAwayStatus(IntEnum):
    """Why a session ends, carried by GOAWAY (2.6.6).

    The section on flow control wants FLOW_CONTROL_ERROR in a GOAWAY, but no number is given to it there; such an end
    is sent as PROTOCOL_ERROR.
    """

    OK = 0
    PROTOCOL_ERROR = 1


class ProtocolError(ShimError):
    """Base: the rules of SPDY/3.1, or this side's limits, were not kept."""


class NotAllowed(ProtocolError):
    """The local side asked for what the state of the stream or of the session does not allow, or no longer allows."""


class StreamError(ProtocolError):
    """The peer broke a rule about one stream; the stream ends, the session goes on (2.4.2). Stays inside."""

    def __init__(self, stream_id: int, status: ResetStatus, reason: str) -> None:
        super().__init__(f"stream {stream_id}: {reason}")
        self.stream_id = stream_id
        self.status = status


class SessionError(ProtocolError):
    """The peer broke a rule after which framing or compression cannot be trusted; all ends (2.4.1). Stays inside."""
