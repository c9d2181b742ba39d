"""The API of a SPDY/3.1 session. The docstring of the package is its manual."""

from collections.abc import Iterator

from shim.streaming.spdy import events, frames
from shim.streaming.spdy.errors import GoAwayStatus, NotAllowed, ResetStatus, SessionError
from shim.streaming.spdy.inbound import Inbound
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Buffer, Queued
from shim.streaming.spdy.session import Session
from shim.streaming.spdy.streams import Part


class Connection:
    """A session. Not thread-safe; no method blocks or reads a clock."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._session = Session(limits)
        self._reader = frames.FrameReader(max_control=limits.max_control_frame)
        self._inbound = Inbound(self._session)

    def receive_data(self, data: bytes) -> Iterator[events.Event]:
        """Yield the events of these bytes from the transport; nothing after the end. Never raises.

        Decoding is lazy, so that the events of a read full of tiny frames are never all in memory. The caller must
        consume all events, and may call any other method in between.
        """
        if self.closed:
            return
        try:
            for frame in self._reader.read(data):
                self._session.announce()
                self._inbound.take(frame)
                yield from self._inbound.take_events()
                if self._session.over:
                    self._end(GoAwayStatus.OK, "all streams ended after GOAWAY")
                    break
        except SessionError as exc:
            self._session.say_goaway(GoAwayStatus.PROTOCOL_ERROR)
            self._end(GoAwayStatus.PROTOCOL_ERROR, str(exc))
        yield from self._inbound.take_events()

    def receive_eof(self) -> list[events.Event]:
        """Return the event for the end of the transport; [] if the session was already over."""
        if not self.closed:
            self._end(GoAwayStatus.OK, f"the transport ended with {len(self._session.streams)} streams open")
        return self._inbound.take_events()

    def _end(self, status: GoAwayStatus, reason: str) -> None:
        self._session.close()
        self._inbound.add(events.ConnectionTerminated(status, reason))

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the transport.

        False while unacknowledged bytes and the memory of the streams fill the session window, and while too many
        control frames wait to be sent.
        """
        return not (
            self._session.flow.full(streams=len(self._session.streams)) or self._session.outbox.congested or self.closed
        )

    @property
    def fixed(self) -> bool:
        """Return False: the client may open and close streams at any time."""
        return False

    @property
    def closed(self) -> bool:
        """Return whether the session is over: send the queued bytes, then close the transport."""
        return self._session.over

    def buffers_to_send(self) -> list[Queued]:
        """Remove and return all queued buffers in order.

        There may be more buffers than a `sendmsg` takes (IOV_MAX, 1024 on Linux).
        """
        return self._session.outbox.take()

    def reply(self, stream_id: int) -> None:
        """Accept a stream of the peer. Raise NotAllowed if it is closed or already accepted."""
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.REPLY)
        session.outbox.put(frames.syn_reply_bytes(stream_id, session.reply_block()))
        session.sent(stream, Part.REPLY, fin=False)

    def send_window(self, stream_id: int) -> int:
        """Return the number of bytes that `send_data` accepts now.

        It grows with `WindowOpened`, and when queued buffers are taken. Raise NotAllowed if the stream is closed,
        finished or not accepted yet.
        """
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.DATA)
        return session.flow.room(stream.flow, session.outbox.room)

    def send_data(self, stream_id: int, data: Buffer, *, fin: bool = False) -> None:
        """Queue bytes; `fin` half-closes the stream. A memoryview is not copied, so its bytes must not change.

        Raise NotAllowed as `send_window` does, and for more bytes than it returns.
        """
        session, size = self._session, len(data)
        if size > self.send_window(stream_id):
            raise NotAllowed(f"stream {stream_id}: {size} bytes are more than may be sent now")
        if not size and not fin:
            return
        stream = session.streams.live(stream_id)
        session.flow.spend(stream.flow, size)
        view, most = memoryview(data), session.limits.max_frame
        for at in range(0, max(size, 1), most):
            piece = view[at : at + most]
            session.outbox.put_data(frames.data_head(stream_id, len(piece), fin=fin and at + most >= size), piece)
        session.sent(stream, Part.DATA, fin=fin)

    def acknowledge(self, stream_id: int, count: int) -> None:
        """Record that the application has finished with `count` bytes, so that the peer may send as many again.

        Do nothing for a closed stream. Raise NotAllowed for more bytes than were received.
        """
        session = self._session
        stream = session.streams.find(stream_id)
        if stream is None:
            return
        session.flow.consume(stream.flow, count, more=not stream.finished_receiving)
        session.forget_if_over(stream)

    def reset(self, stream_id: int, status: ResetStatus = ResetStatus.CANCEL) -> None:
        """Close both directions of a stream at once. Do nothing if it is closed."""
        session = self._session
        stream = session.streams.find(stream_id)
        if stream is None:
            return
        if not stream.over:
            session.outbox.put(frames.rst_stream_bytes(stream_id, status))
        session.drop(stream)

    def goaway(self) -> None:
        """Refuse new streams; open streams continue."""
        self._session.say_goaway(GoAwayStatus.OK)
