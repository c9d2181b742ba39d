"""The bounds of a connection, all in bytes but `max_streams`."""

from dataclasses import dataclass

from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a peer, and the application, may make a connection hold."""

    max_streams: int = 1000
    """Streams opened by the peer at a time; more are refused (REFUSED_STREAM)."""

    max_control_frame: int = 16 * 1024
    """Payload of a control frame, so also the compressed header block. 2.2.1 asks for 8192 at least."""

    max_header_block: int = 32 * 1024
    """Inflated header block."""

    stream_window: int = 256 * 1024
    """What the peer may send on a stream before the application acknowledges it. Not under 64 KiB, because the peer
    may send so much before it is told anything else."""

    session_window: int = 1024 * 1024
    """The same over all streams. `wants_data` is false while so much is not acknowledged."""

    max_frame: int = 64 * 1024
    """Payload of a DATA frame that is sent; longer data is cut."""

    max_queued: int = 256 * 1024
    """Data that waits to be sent; `send_window` is 0 when it is reached."""

    max_answers: int = 256 * 1024
    """Answers to pings, and resets, that wait to be sent; a peer that provokes more is cut off."""

    trust_peer_windows: bool = False
    """Keep to the peer's windows from the first byte on. By default they are kept once the peer has shown that it has
    them; see the package's text on peers without flow control."""

    def __post_init__(self) -> None:
        for window in (self.stream_window, self.session_window):
            if not INITIAL_WINDOW <= window <= MAX_WINDOW:
                raise ValueError(f"window of {window} bytes, it must be from {INITIAL_WINDOW} to {MAX_WINDOW}")
