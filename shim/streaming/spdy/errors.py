"""Status codes and errors of SPDY/3.1.

`Connection.receive_data` raises none of these errors, because errors of the peer become frames and events. The local
side only gets `NotAllowed`, because a peer may reset a stream just before bytes are sent on it.
"""

from enum import IntEnum

from shim.domain.errors import ShimError


class ResetStatus(IntEnum):
    """Why a stream ends, in RST_STREAM (2.6.3)."""

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
    """Why a session ends, in GOAWAY (2.6.6).

    The section on flow control requires FLOW_CONTROL_ERROR in a GOAWAY but does not define its number, so the server
    sends PROTOCOL_ERROR instead.
    """

    OK = 0
    PROTOCOL_ERROR = 1


class ProtocolError(ShimError):
    """Base class: a violation of SPDY/3.1 or of the limits."""


class NotAllowed(ProtocolError):
    """The state of the stream or session does not allow a call of the local side."""


class StreamError(ProtocolError):
    """An error of the peer on a stream: the stream ends, the session continues (2.4.2). Internal."""

    def __init__(self, stream_id: int, status: ResetStatus, reason: str) -> None:
        super().__init__(f"stream {stream_id}: {reason}")
        self.stream_id = stream_id
        self.status = status


class SessionError(ProtocolError):
    """An error of the peer after which framing or compression is undefined: the session ends (2.4.1). Internal."""
