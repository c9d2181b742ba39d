"""The bounds of a connection, in bytes unless stated otherwise."""

from dataclasses import dataclass

from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the memory that the peer and the application can make a connection use."""

    max_streams: int = 1000
    """Open streams of the peer; further streams are refused (REFUSED_STREAM)."""

    max_control_frame: int = 16 * 1024
    """Payload of a control frame, and so also a compressed header block. 2.2.1 requires at least 8192."""

    max_header_block: int = 4 * 1024
    """An inflated header block. Clients of the kubelet send three short headers with each stream."""

    max_header_values: int = 64
    """Number of header values of a block."""

    inflated_free: int = 256 * 1024
    """Inflated bytes of a session that are exempt from `inflated_ratio`, since repeated headers compress well."""

    inflated_ratio: int = 64
    """Beyond `inflated_free`, inflated bytes for each compressed byte, over all header blocks of a session. It bounds
    the work for a session of any length. Blocks of the kubelet's clients have a ratio of 5."""

    stream_window: int = 256 * 1024
    """Unacknowledged bytes that the peer may send on a stream. At least 64 KiB, which the peer may send before it gets
    the settings."""

    session_window: int = 1024 * 1024
    """The same for all streams together. `wants_data` is false while it is exhausted, `stream_memory` included."""

    stream_memory: int = 1024
    """Bytes of the session window that an open stream takes, as it uses memory too. A quarter of the window always
    remains for payload."""

    max_frame: int = 64 * 1024
    """Payload of a sent DATA frame; longer data is split."""

    max_queued: int = 256 * 1024
    """Data that waits to be sent; at this size `send_window` is 0."""

    max_control: int = 64 * 1024
    """Control frames that wait to be sent; at this size `wants_data` is false."""

    max_answers: int = 256 * 1024
    """Control frames that wait to be sent; if the peer provokes more, the session ends."""

    def __post_init__(self) -> None:
        for window in (self.stream_window, self.session_window):
            if not INITIAL_WINDOW <= window <= MAX_WINDOW:
                raise ValueError(f"window of {window} bytes, it must be from {INITIAL_WINDOW} to {MAX_WINDOW}")
