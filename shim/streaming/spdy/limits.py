"""The limits of a connection, in bytes unless stated otherwise."""

from dataclasses import dataclass

from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits the memory of a connection, whatever the peer and the application do."""

    max_streams: int = 1000
    """Maximum open streams. Further streams are refused (REFUSED_STREAM)."""

    max_control_frame: int = 16 * 1024
    """Payload of a control frame, including a compressed header block. 2.2.1 requires at least 8192."""

    max_header_block: int = 4 * 1024
    """An inflated header block. Clients of the kubelet send three short headers with each stream."""

    max_header_values: int = 64
    """Maximum header values of a block."""

    inflated_free: int = 256 * 1024
    """Inflated bytes of a session without `inflated_ratio`, because repeated headers compress well."""

    inflated_ratio: int = 64
    """Maximum inflated bytes per compressed byte beyond `inflated_free`, over all header blocks of a session. It limits
    the work for a session of any length. Blocks of the kubelet's clients have a ratio of 5."""

    stream_window: int = 256 * 1024
    """Unacknowledged bytes that the peer may send on a stream. The minimum is 64 KiB, which the peer may send before it
    gets the settings."""

    session_window: int = 1024 * 1024
    """Unacknowledged bytes on all streams together, plus `stream_memory`. While exhausted, `wants_data` is false."""

    stream_memory: int = 1024
    """Bytes of the session window that an open stream takes for its own memory. A quarter of the window always remains
    for payload."""

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
