"""The receiving half: what each frame of the peer changes, and what the application hears of it."""

from collections.abc import Callable
from typing import Any

from shim.streaming.spdy import events, frames
from shim.streaming.spdy.errors import ResetStatus, SessionError, StreamError
from shim.streaming.spdy.flow import MAX_WINDOW, SendWindow
from shim.streaming.spdy.headers import Headers, Inflater, headers_from_block
from shim.streaming.spdy.session import Phase, Session
from shim.streaming.spdy.streams import Part, Stream


class Inbound:
    """Takes frames; SessionError ends the session, an error of one stream is dealt with here."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inflater = Inflater(max_block=session.limits.max_header_block)
        self._events: list[events.Event] = []
        self._arriving: Stream | None = None  # to which the pieces of the DATA frame under way belong
        self._arriving_fin = False
        self._takers: dict[type[frames.Frame], Callable[[Any], None]] = {
            frames.DataPiece: self._take_piece,
            frames.DataStart: self._take_data_start,
            frames.SynStream: self._take_syn_stream,
            frames.SynReply: self._take_syn_reply,
            frames.MoreHeaders: self._take_headers,
            frames.RstStream: self._take_rst_stream,
            frames.Settings: self._take_settings,
            frames.Ping: self._take_ping,
            frames.GoAway: self._take_goaway,
            frames.WindowUpdate: self._take_window_update,
        }

    def tell(self, event: events.Event) -> None:
        """Add an event."""
        self._events.append(event)

    def take_events(self) -> list[events.Event]:
        """The events since the last time."""
        happened, self._events = self._events, []
        return happened

    def take(self, frame: frames.Frame) -> None:
        """Do what the frame asks for."""
        try:
            self._takers[type(frame)](frame)
        except StreamError as exc:
            self._session.outbox.answer(frames.rst_stream_bytes(exc.stream_id, exc.status))
            stream = self._session.streams.find(exc.stream_id)
            if stream is not None:
                self._end(stream, exc.status, by_peer=False)

    def _end(self, stream: Stream, status: int, *, by_peer: bool) -> None:
        over = stream.over
        self._session.drop(stream)
        if not over:  # the application has heard the end of the others
            self.tell(events.StreamReset(stream.stream_id, status, by_peer=by_peer))

    def _take_data_start(self, frame: frames.DataStart) -> None:
        session = self._session
        self._arriving = None
        # All of a frame is charged by its header, so it does not matter in which pieces the bytes arrive.
        if not session.receive_window.charge(frame.length) and session.peer_has_windows:
            raise SessionError(f"DATA of {frame.length} bytes does not fit the session's window")
        try:
            stream = self._charged_stream(frame)
        except StreamError:
            session.release(frame.length)
            raise
        stream.account.owed += frame.length
        self._arriving, self._arriving_fin = stream, frame.fin

    def _charged_stream(self, frame: frames.DataStart) -> Stream:
        stream = self._session.streams.known(frame.stream_id)
        stream.expect_received(Part.DATA)
        if not stream.receive_window.charge(frame.length) and self._session.peer_has_windows:
            reason = f"DATA of {frame.length} bytes does not fit its window"
            raise StreamError(frame.stream_id, ResetStatus.FLOW_CONTROL_ERROR, reason)
        return stream

    def _take_piece(self, frame: frames.DataPiece) -> None:
        stream = self._arriving
        if stream is None or self._session.streams.find(stream.stream_id) is not stream:
            return  # refused, or reset while its bytes were arriving; drop() has released them
        size = len(frame.data)
        if size:
            stream.account.held += size
            self._session.held += size
            self.tell(events.DataReceived(stream.stream_id, frame.data))
        if frame.last and self._arriving_fin:
            self._took(stream, Part.DATA, fin=True)

    def _took(self, stream: Stream, part: Part, *, fin: bool) -> None:
        stream.received(part, fin=fin)
        if fin:
            self.tell(events.StreamHalfClosed(stream.stream_id))
            self._session.forget_if_over(stream)

    def _take_syn_stream(self, frame: frames.SynStream) -> None:
        session = self._session
        block = self._inflater.inflate(frame.block)  # before anything can refuse the frame
        if session.phase is not Phase.OPEN:
            return  # 2.6.6: ignored after GOAWAY
        session.streams.take_peer_id(frame.stream_id)
        if frame.unidirectional:
            # No client of the kubelet makes such streams, and nothing could be told on one.
            raise StreamError(frame.stream_id, ResetStatus.REFUSED_STREAM, "unidirectional streams are not taken")
        if session.streams.count(opened_here=False) >= session.limits.max_streams:
            raise StreamError(frame.stream_id, ResetStatus.REFUSED_STREAM, "too many streams")
        headers = headers_from_block(block, stream_id=frame.stream_id)
        stream = session.add_stream(frame.stream_id, opened_here=False)
        self.tell(events.StreamOpened(frame.stream_id, headers, frame.associated, frame.priority))
        self._took(stream, Part.HEADERS, fin=frame.fin)

    def _take_syn_reply(self, frame: frames.SynReply) -> None:
        stream, headers = self._headers(frame, Part.REPLY)
        self.tell(events.StreamReplied(frame.stream_id, headers))
        self._took(stream, Part.REPLY, fin=frame.fin)

    def _take_headers(self, frame: frames.MoreHeaders) -> None:
        stream, headers = self._headers(frame, Part.HEADERS)
        self.tell(events.HeadersReceived(frame.stream_id, headers))
        self._took(stream, Part.HEADERS, fin=frame.fin)

    def _headers(self, frame: frames.SynReply | frames.MoreHeaders, part: Part) -> tuple[Stream, Headers]:
        block = self._inflater.inflate(frame.block)
        stream = self._session.streams.known(frame.stream_id)
        stream.expect_received(part)
        return stream, headers_from_block(block, stream_id=frame.stream_id)

    def _take_rst_stream(self, frame: frames.RstStream) -> None:
        stream = self._session.streams.find(frame.stream_id)
        if stream is not None:  # 2.4.2: never answered, so no loop of resets
            self._end(stream, frame.status, by_peer=True)

    def _take_settings(self, frame: frames.Settings) -> None:
        session = self._session
        session.peer_max_streams = frame.values.get(frames.Setting.MAX_CONCURRENT_STREAMS, session.peer_max_streams)
        window = frame.values.get(frames.Setting.INITIAL_WINDOW_SIZE)
        if window is None:
            return
        if window > MAX_WINDOW:
            raise SessionError(f"an initial window of {window} bytes")
        session.peer_has_windows = True
        delta, session.peer_stream_window = window - session.peer_stream_window, window
        for stream in session.streams:
            if not self._widen(stream.send_window, stream.stream_id, delta):
                raise SessionError(f"an initial window of {window} bytes makes that of a stream too large")

    def _take_window_update(self, frame: frames.WindowUpdate) -> None:
        session = self._session
        session.peer_has_windows = True
        if frame.stream_id == 0:
            if not frame.delta or not self._widen(session.send_window, 0, frame.delta):
                raise SessionError(f"WINDOW_UPDATE by {frame.delta} for the session")
            return
        stream = session.streams.find(frame.stream_id)
        if stream is None:
            return  # sent before the peer knew that the stream is over
        if not frame.delta:
            raise StreamError(frame.stream_id, ResetStatus.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if not self._widen(stream.send_window, frame.stream_id, frame.delta):
            raise StreamError(frame.stream_id, ResetStatus.FLOW_CONTROL_ERROR, "WINDOW_UPDATE makes a window too large")

    def _widen(self, window: SendWindow, stream_id: int, delta: int) -> bool:
        was_shut = window.left <= 0
        fits = window.widen(delta)
        if was_shut and window.left > 0:
            self.tell(events.WindowOpened(stream_id))
        return fits

    def _take_ping(self, frame: frames.Ping) -> None:
        session = self._session
        if not session.role.opens(frame.ping_id):
            session.outbox.answer(frames.ping_bytes(frame.ping_id))
            self.tell(events.PingReceived(frame.ping_id))
        elif frame.ping_id in session.pings:  # 2.6.5: others with this side's numbers are ignored
            session.pings.remove(frame.ping_id)
            self.tell(events.PingAcked(frame.ping_id))

    def _take_goaway(self, frame: frames.GoAway) -> None:
        session = self._session
        session.phase = Phase.DRAINING
        self.tell(events.GoAwayReceived(frame.last_stream_id, frame.status))
        for stream in session.streams.own_after(frame.last_stream_id):
            self._end(stream, ResetStatus.REFUSED_STREAM, by_peer=True)
