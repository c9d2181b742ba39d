"""The receiving half: applies each frame of the peer to the session, and creates events for the application."""

from collections.abc import Callable
from typing import Any

from shim.streaming.spdy import events, frames
from shim.streaming.spdy.errors import ResetStatus, StreamError
from shim.streaming.spdy.headers import Inflater, headers_from_block
from shim.streaming.spdy.session import Phase, Session
from shim.streaming.spdy.streams import Stream


class Inbound:
    """Processes frames. It resets a stream after a StreamError, and raises SessionError, which ends the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        limits = session.limits
        self._inflater = Inflater(
            max_block=limits.max_header_block, free=limits.inflated_free, ratio=limits.inflated_ratio
        )
        self._events: list[events.Event] = []
        self._arriving: Stream | None = None  # the stream of the current DATA frame
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

    def add(self, event: events.Event) -> None:
        """Add an event."""
        self._events.append(event)

    def take_events(self) -> list[events.Event]:
        """Remove and return the events since the last call."""
        happened, self._events = self._events, []
        return happened

    def take(self, frame: frames.Frame) -> None:
        """Process a frame. Raise SessionError."""
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
        if not over:  # otherwise the application already knows that the stream has ended
            self.add(events.StreamReset(stream.stream_id, status, by_peer=by_peer))

    def _take_data_start(self, frame: frames.DataStart) -> None:
        session = self._session
        self._arriving = None
        session.flow.charge_session(frame.length)
        try:
            stream = session.streams.known(frame.stream_id)
            stream.expect_receiving()
            session.flow.charge_stream(stream.flow, frame.length)
        except StreamError:
            session.flow.give_back(frame.length)
            raise
        self._arriving, self._arriving_fin = stream, frame.fin

    def _take_piece(self, frame: frames.DataPiece) -> None:
        stream = self._arriving
        if stream is None or self._session.streams.find(stream.stream_id) is not stream:
            return  # the stream was refused or reset, so its bytes were already given back
        size = len(frame.data)
        if size:
            self._session.flow.deliver(stream.flow, size)
            self.add(events.DataReceived(stream.stream_id, frame.data))
        if frame.last and self._arriving_fin:
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        stream.finish_receiving()
        self.add(events.StreamHalfClosed(stream.stream_id))
        self._session.forget_if_over(stream)

    def _take_syn_stream(self, frame: frames.SynStream) -> None:
        session = self._session
        block = self._inflater.inflate(frame.block)  # even if the frame is refused
        if session.phase is not Phase.OPEN:
            return  # 2.6.6: ignored after GOAWAY
        session.streams.take_id(frame.stream_id)
        if frame.unidirectional:
            # No client of the kubelet opens such streams, and nothing could be sent on them.
            raise StreamError(frame.stream_id, ResetStatus.REFUSED_STREAM, "unidirectional streams are not taken")
        if len(session.streams) >= session.limits.max_streams:
            raise StreamError(frame.stream_id, ResetStatus.REFUSED_STREAM, "too many streams")
        most = session.limits.max_header_values
        headers = headers_from_block(block, stream_id=frame.stream_id, max_values=most)
        stream = session.add_stream(frame.stream_id)
        self.add(events.StreamOpened(frame.stream_id, headers))
        if frame.fin:
            self._finish(stream)

    def _take_syn_reply(self, frame: frames.SynReply) -> None:
        self._inflater.inflate(frame.block)  # only to update the zlib state
        self._session.streams.known(frame.stream_id).expect_receiving()
        raise StreamError(frame.stream_id, ResetStatus.STREAM_IN_USE, "a reply to a stream that the client opened")

    def _take_headers(self, frame: frames.MoreHeaders) -> None:
        self._inflater.inflate(frame.block)  # only to update the zlib state: no task uses further headers
        stream = self._session.streams.known(frame.stream_id)
        stream.expect_receiving()
        if frame.fin:
            self._finish(stream)

    def _take_rst_stream(self, frame: frames.RstStream) -> None:
        stream = self._session.streams.find(frame.stream_id)
        if stream is not None:  # 2.4.2: never answered, to avoid a loop of resets
            self._end(stream, frame.status, by_peer=True)

    def _take_settings(self, frame: frames.Settings) -> None:
        window = frame.values.get(frames.Setting.INITIAL_WINDOW_SIZE)
        if window is not None and self._session.flow.set_initial(window):
            self.add(events.WindowOpened(0))

    def _take_window_update(self, frame: frames.WindowUpdate) -> None:
        flow = self._session.flow
        if frame.stream_id == 0:
            opened = flow.widen_session(frame.delta)
        else:  # perhaps sent before the peer knew that the stream is closed
            stream = self._session.streams.find(frame.stream_id)
            opened = flow.widen_stream(None if stream is None else stream.flow, frame.delta)
        if opened:
            self.add(events.WindowOpened(frame.stream_id))

    def _take_ping(self, frame: frames.Ping) -> None:
        if frame.ping_id % 2:  # 2.6.5: even ids are answers to pings of the server, which sends none
            self._session.outbox.answer(frames.ping_bytes(frame.ping_id))

    def _take_goaway(self, _frame: frames.GoAway) -> None:
        self._session.phase = Phase.DRAINING
