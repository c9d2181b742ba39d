"""A SPDY/3.1 session without its transport: bytes in, events out. The package's docstring is the manual."""

from collections.abc import Iterable

from shim.streaming.spdy import events, frames
from shim.streaming.spdy.errors import GoAwayStatus, NotAllowed, ResetStatus, SessionError
from shim.streaming.spdy.inbound import Inbound
from shim.streaming.spdy.limits import Limits
from shim.streaming.spdy.outbox import Buffer
from shim.streaming.spdy.session import Phase, Session
from shim.streaming.spdy.streams import Part, Role


class Connection:
    """One side of a session. Not thread-safe; nothing here blocks, waits or looks at a clock."""

    def __init__(self, role: Role, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._session = Session(role, limits)
        self._reader = frames.FrameReader(max_control=limits.max_control_frame)
        self._inbound = Inbound(self._session)
        self._next_ping = role.first_id

    def receive_data(self, data: bytes) -> list[events.Event]:
        """The events of these bytes from the transport. Raises nothing, whatever the bytes; none after the end."""
        if self.closed:
            return []
        try:
            for frame in self._reader.read(data):
                self._session.announce()
                self._inbound.take(frame)
                if self._session.over:
                    self._end(GoAwayStatus.OK, "all streams ended after GOAWAY")
                    break
        except SessionError as exc:
            self._session.say_goaway(GoAwayStatus.PROTOCOL_ERROR)
            self._end(GoAwayStatus.PROTOCOL_ERROR, str(exc))
        return self._inbound.take_events()

    def receive_eof(self) -> list[events.Event]:
        """The event of a transport that the peer closed, or that broke; none when the session was over before."""
        if not self.closed:
            self._end(GoAwayStatus.OK, f"the transport ended with {len(self._session.streams)} streams open")
        return self._inbound.take_events()

    def _end(self, status: GoAwayStatus, reason: str) -> None:
        self._session.close()
        self._inbound.tell(events.ConnectionTerminated(status, reason))

    @property
    def wants_data(self) -> bool:
        """Whether to read from the transport. False while the application has a session window of bytes to consume."""
        return self._session.held < self._session.limits.session_window and not self.closed

    @property
    def closed(self) -> bool:
        """The session is over: what is queued is to be sent, then the transport closed."""
        return self._session.over

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent."""
        return self._session.outbox.size

    def buffers_to_send(self) -> list[Buffer]:
        """All that waits to be sent, in order, for `sendmsg`; it is taken, and there is room for more data again.

        There may be more buffers than one `sendmsg` takes (IOV_MAX, 1024 on Linux).
        """
        return self._session.outbox.take()

    def data_to_send(self) -> bytes:
        """The same in one piece."""
        return b"".join(self._session.outbox.take())

    def open_stream(
        self, headers: Iterable[tuple[str, str]], *, fin: bool = False, associated: int = 0, priority: int = 0
    ) -> int:
        """Open a stream and return its id. Data may be sent at once; `StreamReplied` tells that the peer took it.

        `priority` is 0 (highest) to 7. NotAllowed after GOAWAY of either side, beyond the peer's limit of streams, and
        for headers that SPDY cannot carry.
        """
        session = self._session
        if session.phase is not Phase.OPEN:
            raise NotAllowed("a stream cannot be opened after GOAWAY")
        open_here = session.streams.count(opened_here=True)
        if session.peer_max_streams is not None and open_here >= session.peer_max_streams:
            raise NotAllowed(f"the peer takes {session.peer_max_streams} streams, {open_here} are open")
        block = session.deflated(headers)
        stream_id = session.streams.next_own_id()
        session.announce()
        frame = frames.SynStream(stream_id, associated, priority, fin=fin, unidirectional=False, block=block)
        session.outbox.put(frames.syn_stream_bytes(frame))
        session.sent(session.add_stream(stream_id, opened_here=True), Part.HEADERS, fin=fin)
        return stream_id

    def reply(self, stream_id: int, headers: Iterable[tuple[str, str]] = (), *, fin: bool = False) -> None:
        """Accept a stream of the peer. NotAllowed when it is gone, or was replied to before."""
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.REPLY)
        session.outbox.put(frames.syn_reply_bytes(stream_id, session.deflated(headers), fin=fin))
        session.sent(stream, Part.REPLY, fin=fin)

    def send_headers(self, stream_id: int, headers: Iterable[tuple[str, str]], *, fin: bool = False) -> None:
        """Send more headers. NotAllowed when the stream is gone or finished, or not yet replied to."""
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.HEADERS)
        session.outbox.put(frames.headers_bytes(stream_id, session.deflated(headers), fin=fin))
        session.sent(stream, Part.HEADERS, fin=fin)

    def send_window(self, stream_id: int) -> int:
        """How many bytes `send_data` takes now. It grows with `WindowOpened`, and when what is queued is taken.

        NotAllowed when the stream is gone or finished, or not yet replied to.
        """
        session = self._session
        stream = session.streams.live(stream_id)
        stream.expect_sendable(Part.DATA)
        room = session.outbox.room
        if session.peer_has_windows:
            room = min(room, stream.send_window.left, session.send_window.left)
        return max(0, room)

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
        stream.send_window.spend(size)
        session.send_window.spend(size)
        view, most = memoryview(data), session.limits.max_frame
        for at in range(0, max(size, 1), most):
            piece = view[at : at + most]
            session.outbox.put_data(frames.data_head(stream_id, len(piece), fin=fin and at + most >= size), piece)
        session.sent(stream, Part.DATA, fin=fin)

    def acknowledge(self, stream_id: int, count: int) -> None:
        """The application consumed `count` bytes of `DataReceived`, so the peer may send as many again.

        Nothing happens for a stream that is gone. NotAllowed for more bytes than were received.
        """
        session = self._session
        stream = session.streams.find(stream_id)
        if stream is None:
            return
        stream.account.consume(count)
        session.held -= count
        if not stream.finished_receiving:
            session.update_window(stream_id, stream.receive_window.release(count))
        session.release(count)
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

    def ping(self) -> int:
        """Ask the peer for a sign of life; `PingAcked` will have the number that is returned. NotAllowed at the end."""
        session = self._session
        if self.closed:
            raise NotAllowed("the session is over")
        ping_id = self._next_ping
        self._next_ping = ping_id + 2 if ping_id + 2 <= frames.MAX_ID else session.role.first_id
        session.announce()
        session.pings.add(ping_id)
        session.outbox.put(frames.ping_bytes(ping_id))
        return ping_id

    def goaway(self, status: GoAwayStatus = GoAwayStatus.OK) -> None:
        """Take no more streams. With OK those that are open go on; with another status all ends now."""
        self._session.say_goaway(status)
        if status is not GoAwayStatus.OK:
            self._session.close()
