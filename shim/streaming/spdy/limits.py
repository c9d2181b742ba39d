"""The bounds of a connection, in bytes where nothing else is said."""

from dataclasses import dataclass

from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a peer, and the application, may make a connection hold."""

    max_streams: int = 1000
    """Streams opened by the peer at a time; more are refused (REFUSED_STREAM)."""

    max_control_frame: int = 16 * 1024
    """Payload of a control frame, so also the compressed header block. 2.2.1 asks for 8192 at least."""

    max_header_block: int = 4 * 1024
    """Inflated header block. Clients of the kubelet send three short headers with a stream, and no other block."""

    max_header_values: int = 64
    """Header values (not bytes) of one block."""

    inflated_free: int = 256 * 1024
    """Inflated header blocks of a session that count as nothing, so that a client may repeat itself for a while."""

    inflated_ratio: int = 64
    """Beyond that, bytes that all header blocks of a session may inflate to for each byte of theirs that was sent.
    It bounds the work, however long a session lasts; blocks of the kubelet's clients have a ratio of 5."""

    stream_window: int = 256 * 1024
    """Bytes the peer may send on a stream before the application acknowledges it. Not under 64 KiB, because the peer
    may send so much before it gets any other setting."""

    session_window: int = 1024 * 1024
    """The same over all streams. `wants_data` is false while so much is not acknowledged, streams included."""

    stream_memory: int = 1024
    """Bytes an open stream counts as then: it takes memory, too. However many there are, a quarter of the window is
    left for payload."""

    max_frame: int = 64 * 1024
    """Payload of a DATA frame that is sent; longer data is cut."""

    max_queued: int = 256 * 1024
    """Data that waits to be sent; `send_window` is 0 when it is reached."""

    max_control: int = 64 * 1024
    """Control frames that wait to be sent, for whatever reason; `wants_data` is false when it is reached."""

    max_answers: int = 256 * 1024
    """Control frames that may wait when the peer provokes one more; then it is cut off."""

    def __post_init__(self) -> None:
        for window in (self.stream_window, self.session_window):
            if not INITIAL_WINDOW <= window <= MAX_WINDOW:
                raise ValueError(f"window of {window} bytes, it must be from {INITIAL_WINDOW} to {MAX_WINDOW}")
