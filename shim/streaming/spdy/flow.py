"""Flow control (2.6.8): the one owner of every count of payload bytes, in both directions.

Receiving. A byte of payload passes these points, and each has a count:

==========  =========================================================================  =======================
count       what it says                                                               goes down by
==========  =========================================================================  =======================
left        what the peer may still send: a stream's window, and the session's         a frame's header
owed        charged to the windows and not given back: delivered, or announced by a    `consume`, `forget`
            frame whose bytes are still arriving
held        delivered to the application and not acknowledged: this is the memory      `consume`, `forget`
given       consumed, and not yet announced to the peer in a WINDOW_UPDATE             a WINDOW_UPDATE
==========  =========================================================================  =======================

The header of a DATA frame charges the whole frame, so it does not matter in which pieces its bytes arrive. Therefore

- for each stream  held <= owed, and owed is also what its end gives back to the session;
- for the session  held is the sum over its streams, also over those that are over and whose bytes are not acknowledged:
  such a stream stays in the table, and counts as one of `max_streams`, until they are;
- a frame of a stream that is not there, or that is refused, is charged to the session and given back at once.

What bounds memory. `held` is bounded by the session's window, for every peer, and by less when there are many
streams, which take memory themselves (`Limits.stream_memory`):

- A peer with windows that sends more than it was let is cut off: its stream, or the session.
- A peer without windows (Go's spdystream: every client of the kubelet) never learns of windows, and may not be punished
  for them. For it, `full` stops the reading from the transport while `held` is that much. One read of the
  transport may lie above that, so held < session window + one read. The reader must therefore ask `wants_data`
  before each read, and must read in pieces that are small beside the window.

A piece that is delivered is a view, which keeps all of its read alive: one byte of payload can keep 64 KiB. That is
memory which no count here sees, so the channel that stores a piece copies it unless it is most of its read
(`shim.streaming.channel`).

Acknowledged means that the application is done with a byte, not that it has taken it: a piece in the hands of a thread
that waits for a slow process is memory, too.

Sending. `send_left` of the session, and of a stream the initial window plus what has moved it since, are what the peer
lets this side send; they may be negative (2.6.8, "Initial Flow Control Window Size"). They are counted from the start
and obeyed once the peer has shown that it has windows, by SETTINGS_INITIAL_WINDOW_SIZE or a WINDOW_UPDATE. Before that
only the room in the outbox bounds what is queued, and the back-pressure is that of the transport. A new initial window
costs the same for a thousand streams as for one, since streams count from it: a peer could send thousands at once.

Control frames are no payload. Those that wait to be sent are bounded by the outbox, those that arrive by the reader.
"""

from collections.abc import Callable

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.frames import MAX_ID

INITIAL_WINDOW = 64 * 1024
MAX_WINDOW = MAX_ID


class StreamFlow:
    """The counts of one stream. Only `Flow` changes them."""

    __slots__ = ("given", "held", "left", "owed", "send_moved", "stream_id")

    def __init__(self, stream_id: int, *, window: int) -> None:
        self.stream_id = stream_id
        self.left = window
        self.owed = 0
        self.held = 0
        self.given = 0
        self.send_moved = 0  # the send window against the initial one


class Flow:
    """The counts of a session, and all steps that change counts."""

    def __init__(
        self, *, stream_window: int, session_window: int, stream_memory: int, update: Callable[[int, int], None]
    ) -> None:
        """`update(stream_id, delta)` sends a WINDOW_UPDATE; stream 0 is the session. The others as in `Limits`."""
        self._stream_window = stream_window
        self._session_window = session_window
        self._stream_memory = stream_memory
        self._update = update
        self._peer_has_windows = False
        self._left = session_window
        self._held = 0
        self._given = 0
        self._send_left = INITIAL_WINDOW
        self._initial_send = INITIAL_WINDOW

    def stream(self, stream_id: int) -> StreamFlow:
        """Return the counts of a stream that is opened now."""
        return StreamFlow(stream_id, window=self._stream_window)

    # Receiving

    def full(self, *, streams: int) -> bool:
        """Return whether no more is to be read: of the window, `streams` open ones leave a quarter at least."""
        window = self._session_window
        return self._held >= max(window // 4, window - streams * self._stream_memory)

    def charge_session(self, length: int) -> None:
        """Charge a frame of `length` bytes. Raise SessionError when a peer that has windows exceeds them."""
        self._left -= length
        if self._left < 0 and self._peer_has_windows:
            raise SessionError(f"DATA of {length} bytes does not fit the session's window")

    def charge_stream(self, stream: StreamFlow, length: int) -> None:
        """Charge it to its stream, too. Raise StreamError when a peer that has windows exceeds them."""
        stream.left -= length
        if stream.left < 0 and self._peer_has_windows:
            reason = f"DATA of {length} bytes does not fit its window"
            raise StreamError(stream.stream_id, ResetStatus.FLOW_CONTROL_ERROR, reason)
        stream.owed += length

    def deliver(self, stream: StreamFlow, count: int) -> None:
        """Count bytes that the application gets."""
        stream.held += count
        self._held += count

    def consume(self, stream: StreamFlow, count: int, *, more: bool) -> None:
        """Return bytes that the application is done with; `more`: the peer may still send on this stream.

        Raise NotAllowed when the application did not get so many.
        """
        if not 0 <= count <= stream.held:
            raise NotAllowed(f"acknowledging {count} bytes of {stream.held} that were delivered")
        stream.held -= count
        stream.owed -= count
        self._held -= count
        if more:
            stream.given += count
            if stream.given * 2 >= self._stream_window:
                delta, stream.given = stream.given, 0
                stream.left += delta
                self._update(stream.stream_id, delta)
        self.give_back(count)

    def forget(self, stream: StreamFlow) -> None:
        """Return all that a stream which ends now has of the session."""
        owed, stream.owed = stream.owed, 0
        self._held -= stream.held
        stream.held = 0
        self.give_back(owed)

    def give_back(self, count: int) -> None:
        """Grant the peer `count` bytes more over all streams.

        It is announced when half of the window has come together: often enough that a peer whose bytes are consumed
        never stops for it, and one small frame for many bytes.
        """
        self._given += count
        if self._given * 2 >= self._session_window:
            delta, self._given = self._given, 0
            self._left += delta
            self._update(0, delta)

    # Sending

    def room(self, stream: StreamFlow, most: int) -> int:
        """Return how much of `most` bytes the peer lets be sent on a stream now."""
        if not self._peer_has_windows:
            return most
        return max(0, min(most, self._initial_send + stream.send_moved, self._send_left))

    def spend(self, stream: StreamFlow, count: int) -> None:
        """Count bytes that are sent."""
        stream.send_moved -= count
        self._send_left -= count

    def widen_session(self, delta: int) -> bool:
        """Take a WINDOW_UPDATE of the session; return whether it opens the window. SessionError when it cannot be."""
        self._peer_has_windows = True
        was_shut = self._send_left <= 0
        self._send_left += delta
        if not delta or self._send_left > MAX_WINDOW:
            raise SessionError(f"WINDOW_UPDATE by {delta} for the session")
        return was_shut and self._send_left > 0

    def widen_stream(self, stream: StreamFlow | None, delta: int) -> bool:
        """Take a WINDOW_UPDATE of a stream, None for one that is gone; return whether it opens the window.

        Raise StreamError when it cannot be.
        """
        self._peer_has_windows = True
        if stream is None:
            return False
        if not delta:
            raise StreamError(stream.stream_id, ResetStatus.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        was_shut = self._initial_send + stream.send_moved <= 0
        stream.send_moved += delta
        if self._initial_send + stream.send_moved > MAX_WINDOW:
            raise StreamError(
                stream.stream_id, ResetStatus.FLOW_CONTROL_ERROR, "WINDOW_UPDATE makes a window too large"
            )
        return was_shut and self._initial_send + stream.send_moved > 0

    def set_initial(self, window: int) -> bool:
        """Take the initial window of the peer's streams; return whether it may have opened some.

        Raise SessionError when it is larger than a window can be. That of a stream may become so, which is not checked:
        it only means that nothing is held back.
        """
        if window > MAX_WINDOW:
            raise SessionError(f"an initial window of {window} bytes")
        self._peer_has_windows = True
        wider, self._initial_send = window > self._initial_send, window
        return wider
