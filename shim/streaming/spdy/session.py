"""The state that both halves of a connection share: streams, flow control, compression, outbox and phase."""

from enum import Enum, auto

from shim.streaming.spdy import frames
from shim.streaming.spdy.errors import GoAwayStatus
from shim.streaming.spdy.flow import INITIAL_WINDOW, Flow
from shim.streaming.spdy.headers import Deflater
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Outbox
from shim.streaming.spdy.streams import Part, Stream, StreamTable


class Phase(Enum):
    """The phase of a session. It only moves forward."""

    OPEN = auto()
    DRAINING = auto()  # a side has sent GOAWAY: open streams continue, new streams are refused
    CLOSED = auto()


class Session:
    """The state of a connection, and the operations that sending and receiving share."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.phase = Phase.OPEN
        self.streams = StreamTable()
        self.outbox = Outbox(room=limits.max_queued, max_control=limits.max_control, max_answers=limits.max_answers)
        self.flow = Flow(
            stream_window=limits.stream_window,
            session_window=limits.session_window,
            stream_memory=limits.stream_memory,
            update=self._update_window,
        )
        self._deflater = Deflater()
        self._announced = False
        self._said_goaway = False

    @property
    def over(self) -> bool:
        """Return whether the session is closed or drained."""
        return self.phase is Phase.CLOSED or (self.phase is Phase.DRAINING and not len(self.streams))

    def announce(self) -> None:
        """Send the server's limits once, before anything else.

        It is called when the first frame has arrived, not earlier: Go's client reads the 101 response through a buffer,
        and discards the buffer with all bytes after the response.
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
        if limits.session_window > INITIAL_WINDOW:
            self._update_window(0, limits.session_window - INITIAL_WINDOW)

    def reply_block(self) -> bytes:
        """Return the compressed block of a reply without headers. It must be sent: it changes the zlib state."""
        return self._deflater.deflate(b"\0\0\0\0")

    def add_stream(self, stream_id: int) -> Stream:
        """Create and add a stream."""
        stream = Stream(stream_id, self.flow.stream(stream_id))
        self.streams.add(stream)
        return stream

    def sent(self, stream: Stream, part: Part, *, fin: bool) -> None:
        """Update the state of the stream after `part` was queued."""
        stream.sent(part, fin=fin)
        self.forget_if_over(stream)

    def forget_if_over(self, stream: Stream) -> None:
        """Remove a closed stream, once its bytes are acknowledged; see `flow`."""
        if stream.over and not stream.flow.owed:
            self.streams.remove(stream)

    def drop(self, stream: Stream) -> None:
        """Remove a stream, and give its bytes back to the session's window."""
        self.streams.remove(stream)
        self.flow.forget(stream.flow)

    def _update_window(self, stream_id: int, delta: int) -> None:
        self.outbox.put(frames.window_update_bytes(stream_id, delta))

    def say_goaway(self, status: GoAwayStatus) -> None:
        """Send GOAWAY: once with status OK, and again if an error follows."""
        if self.phase is Phase.CLOSED or (self._said_goaway and status is GoAwayStatus.OK):
            return
        self._said_goaway = True
        self.phase = Phase.DRAINING
        self.outbox.put(frames.goaway_bytes(self.streams.last_id, status))

    def close(self) -> None:
        """Close the session and forget all streams."""
        self.phase = Phase.CLOSED
        self.streams.clear()
