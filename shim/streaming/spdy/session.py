"""What both halves of a connection share: streams, windows, compression, what waits to be sent, and the phase."""

from collections.abc import Iterable
from enum import Enum, auto

from shim.streaming.spdy import frames
from shim.streaming.spdy.errors import GoAwayStatus
from shim.streaming.spdy.flow import INITIAL_WINDOW, ReceiveWindow, SendWindow
from shim.streaming.spdy.headers import Deflater, block_from_headers
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Outbox
from shim.streaming.spdy.streams import Part, Role, Stream, StreamTable


class Phase(Enum):
    """How far a session is. It only moves forward."""

    OPEN = auto()
    DRAINING = auto()  # one side said GOAWAY: no new streams, those that are open go on
    CLOSED = auto()


class Session:
    """The state of a connection, and the steps that what is sent and what is received have in common."""

    def __init__(self, role: Role, limits: Limits) -> None:
        self.role = role
        self.limits = limits
        self.phase = Phase.OPEN
        self.streams = StreamTable(role)
        self.outbox = Outbox(room=limits.max_queued, max_answers=limits.max_answers)
        self.send_window = SendWindow()
        self.receive_window = ReceiveWindow(limits.session_window)
        self.held = 0  # bytes delivered and not acknowledged, over all streams
        self.pings: set[int] = set()  # sent and not answered
        self.peer_has_windows = limits.trust_peer_windows
        self.peer_stream_window = INITIAL_WINDOW
        self.peer_max_streams: int | None = None
        self._deflater = Deflater()
        self._announced = False
        self._said_goaway = False

    @property
    def over(self) -> bool:
        """Closed, or drained."""
        return self.phase is Phase.CLOSED or (self.phase is Phase.DRAINING and not len(self.streams))

    def announce(self) -> None:
        """Tell the peer this side's limits, once, before anything else is said.

        A server does it when the first frame has come, not at once: Go's client reads the 101 response through a
        buffer that it then throws away, with all that had arrived behind the response.
        """
        if self._announced:
            return
        self._announced = True
        limits = self.limits
        self.outbox.put(
            frames.settings_bytes(
                (
                    (frames.Setting.MAX_CONCURRENT_STREAMS, limits.max_streams),
                    (frames.Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
                )
            )
        )
        self.update_window(0, limits.session_window - INITIAL_WINDOW)

    def deflated(self, headers: Iterable[tuple[str, str]]) -> bytes:
        """The compressed block of these headers. It must be sent, the peer's state follows it."""
        return self._deflater.deflate(block_from_headers(headers))

    def add_stream(self, stream_id: int, *, opened_here: bool) -> Stream:
        """A stream that is opened now."""
        stream = Stream(
            stream_id,
            opened_here=opened_here,
            send_window=self.peer_stream_window,
            receive_window=self.limits.stream_window,
        )
        self.streams.add(stream)
        return stream

    def sent(self, stream: Stream, part: Part, *, fin: bool) -> None:
        """Move the stream for what was just queued."""
        stream.sent(part, fin=fin)
        self.forget_if_over(stream)

    def forget_if_over(self, stream: Stream) -> None:
        """A stream stays until its bytes are acknowledged too, so that its share of the session window is known."""
        if stream.over and not stream.account.owed:
            self.streams.remove(stream)

    def drop(self, stream: Stream) -> None:
        """End a stream here; what it holds of the session's window is free again."""
        self.held -= stream.account.held
        self.streams.remove(stream)
        self.release(stream.account.owed)

    def release(self, count: int) -> None:
        """`count` bytes of the session window are consumed."""
        self.update_window(0, self.receive_window.release(count))

    def update_window(self, stream_id: int, delta: int) -> None:
        """Let the peer send `delta` bytes more."""
        if delta:
            self.outbox.put(frames.window_update_bytes(stream_id, delta))

    def say_goaway(self, status: GoAwayStatus) -> None:
        """Send GOAWAY, once for a friendly end, and again when it becomes another."""
        if self.phase is Phase.CLOSED or (self._said_goaway and status is GoAwayStatus.OK):
            return
        self._said_goaway = True
        self.phase = Phase.DRAINING
        self.outbox.put(frames.goaway_bytes(self.streams.last_peer_id, status))

    def close(self) -> None:
        """Forget all streams; nothing comes in any more."""
        self.phase = Phase.CLOSED
        self.streams.clear()
        self.held = 0
