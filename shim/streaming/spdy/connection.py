"""The server's side of a SPDY/3.1 session without its transport. The package's docstring is the manual."""

from collections.abc import Iterator

from shim.streaming.spdy import events, frames
from shim.streaming.spdy.errors import GoAwayStatus, NotAllowed, ResetStatus, SessionError
from shim.streaming.spdy.inbound import Inbound
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Buffer, Queued
from shim.streaming.spdy.session import Session
from shim.streaming.spdy.streams import Part


class Connection:
    """A session. Not thread-safe; nothing here blocks, waits or reads a clock."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._session = Session(limits)
        self._reader = frames.FrameReader(max_control=limits.max_control_frame)
        self._inbound = Inbound(self._session)

    def receive_data(self, data: bytes) -> Iterator[events.Event]:
        """Yield the events of these bytes from the transport. Raises nothing, whatever the bytes; none after the end.

        The bytes are taken while the events are, so that the events of a read full of tiny frames are never all there.
        Take all of them; each may be acted on at once, with any other method.
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
        """Return the event of a transport that the peer closed, or that broke; none when all was over before."""
        if not self.closed:
            self._end(GoAwayStatus.OK, f"the transport ended with {len(self._session.streams)} streams open")
        return self._inbound.take_events()

    def _end(self, status: GoAwayStatus, reason: str) -> None:
        self._session.close()
        self._inbound.add(events.ConnectionTerminated(status, reason))

    @property
    def wants_data(self) -> bool:
        """Return whether to read from the transport.

        False while the application has a session window of bytes to consume, less what the streams themselves take, and
        while the peer does not take the control frames that it, or the application because of it, has queued.
        """
        return not (
            self._session.flow.full(streams=len(self._session.streams)) or self._session.outbox.congested or self.closed
        )

    @property
    def fixed(self) -> bool:
        """The client may open streams at any time."""
        return False

    @property
    def closed(self) -> bool:
        """The session is over: what is queued is to be sent, then the transport closed."""
        return self._session.over

    def buffers_to_send(self) -> list[Queued]:
        """Return all that waits to be sent, in order, for `sendmsg`; it is taken, and there is room for more again.

        There may be more buffers than one `sendmsg` takes (IOV_MAX, 1024 on Linux).
        """
        return self._session.outbox.take()

    def reply(self, stream_id: int) -> None:
        """Accept a stream of the peer. NotAllowed when it is gone, or was replied to before."""
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.REPLY)
        session.outbox.put(frames.syn_reply_bytes(stream_id, session.reply_block()))
        session.sent(stream, Part.REPLY, fin=False)

    def send_window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` takes now. It grows with `WindowOpened`, and when what is queued is taken.

        NotAllowed when the stream is gone or finished, or not yet replied to.
        """
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.DATA)
        return session.flow.room(stream.flow, session.outbox.room)

    def send_data(self, stream_id: int, data: Buffer, *, fin: bool = False) -> None:
        """Queue bytes, without a copy: what a memoryview shows must not change until it is taken. `fin` half-closes.

        NotAllowed when the stream is gone or finished, or not yet replied to, and for more than `send_window`.
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
        """Take note that the application is done with `count` bytes of `DataReceived`: the peer may send as many again.

        Nothing happens for a stream that is gone. NotAllowed for more bytes than were received.
        """
        session = self._session
        stream = session.streams.find(stream_id)
        if stream is None:
            return
        session.flow.consume(stream.flow, count, more=not stream.finished_receiving)
        session.forget_if_over(stream)

    def reset(self, stream_id: int, status: ResetStatus = ResetStatus.CANCEL) -> None:
        """End a stream, both ways, now. Nothing happens when it is gone."""
        session = self._session
        stream = session.streams.find(stream_id)
        if stream is None:
            return
        if not stream.over:
            session.outbox.put(frames.rst_stream_bytes(stream_id, status))
        session.drop(stream)

    def goaway(self) -> None:
        """Take no more streams; those that are open go on."""
        self._session.say_goaway(GoAwayStatus.OK)
