"""Flow control (2.6.8): counts payload bytes in both directions.

Receiving. A byte of payload passes through these counts:

==========  =========================================================================  =======================
count       meaning                                                                    decreased by
==========  =========================================================================  =======================
left        window: bytes the peer may still send on a stream, or in the session       the header of a frame
owed        bytes charged to the windows and not given back: delivered, or announced   `consume`, `forget`
            by a frame whose bytes are still arriving
held        bytes delivered to the application and not acknowledged, hence in memory   `consume`, `forget`
given       bytes acknowledged, but not yet announced to the peer in a WINDOW_UPDATE   a WINDOW_UPDATE
==========  =========================================================================  =======================

The header of a DATA frame charges the whole frame, so the split of its bytes does not matter. Therefore

- For each stream held <= owed. At its end the stream gives `owed` back to the session.
- For the session `held` is the sum over its streams, including closed streams with unacknowledged bytes. Such a stream
  stays in the table, and counts against `max_streams`, until its bytes are acknowledged.
- A frame of an unknown or refused stream is charged to the session and given back at once.

Memory. The session's window limits `held` for every peer. The limit is lower with many streams, because they take
memory themselves (`Limits.stream_memory`):

- If a peer with windows exceeds them, its stream or the session ends.
- A peer without windows (Go's spdystream, in every client of the kubelet) must not be cut off. For such a peer, `full`
  stops reading from the transport while `held` has reached the limit. A read may exceed the limit, so held < session
  window + size of a read. Therefore the owner must check `wants_data` before each read, and its reads must be small
  compared with the window.

A delivered piece is a view, which keeps the buffer of its whole read: a byte of payload can keep 64 KiB. No count here
includes this memory. So a channel copies a piece unless it is most of its buffer (`shim.streaming.channel`).

Acknowledged means that the application has finished with a byte. A byte that was read but is still being written to a
slow process takes memory, and is not acknowledged.

Sending. The peer allows `send_left` bytes in the session, and the initial window plus `send_moved` on a stream; both
may be negative (2.6.8, "Initial Flow Control Window Size"). They are counted from the start, but obeyed only once the
peer has shown that it has windows, by SETTINGS_INITIAL_WINDOW_SIZE or a WINDOW_UPDATE. Before that, only the room in
the outbox limits the queue, and the transport provides the back-pressure. `send_moved` is relative to the initial
window. So a new initial window takes constant time for any number of streams, even if a peer sends thousands of them.

Control frames are not payload. The outbox limits control frames to send, the frame reader received control frames.
"""

from collections.abc import Callable

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.frames import MAX_ID

INITIAL_WINDOW = 64 * 1024
MAX_WINDOW = MAX_ID


class StreamFlow:
    """The counts of a stream. Only `Flow` changes them."""

    __slots__ = ("given", "held", "left", "owed", "send_moved", "stream_id")

    def __init__(self, stream_id: int, *, window: int) -> None:
        self.stream_id = stream_id
        self.left = window
        self.owed = 0
        self.held = 0
        self.given = 0
        self.send_moved = 0  # the send window relative to the initial window


class Flow:
    """The counts of a session, and all changes of counts."""

    def __init__(
        self, *, stream_window: int, session_window: int, stream_memory: int, update: Callable[[int, int], None]
    ) -> None:
        """`update(stream_id, delta)` sends a WINDOW_UPDATE; stream 0 is the session. See `Limits` for the rest."""
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
        """Return the counts of a new stream."""
        return StreamFlow(stream_id, window=self._stream_window)

    # Receiving

    def full(self, *, streams: int) -> bool:
        """Return whether reading must stop. Even with many `streams`, a quarter of the window is left for payload."""
        window = self._session_window
        return self._held >= max(window // 4, window - streams * self._stream_memory)

    def charge_session(self, length: int) -> None:
        """Charge a frame to the session. Raise SessionError if a peer with windows exceeds the window."""
        self._left -= length
        if self._left < 0 and self._peer_has_windows:
            raise SessionError(f"DATA of {length} bytes does not fit the session's window")

    def charge_stream(self, stream: StreamFlow, length: int) -> None:
        """Charge a frame to its stream. Raise StreamError if a peer with windows exceeds the window."""
        stream.left -= length
        if stream.left < 0 and self._peer_has_windows:
            reason = f"DATA of {length} bytes does not fit its window"
            raise StreamError(stream.stream_id, ResetStatus.FLOW_CONTROL_ERROR, reason)
        stream.owed += length

    def deliver(self, stream: StreamFlow, count: int) -> None:
        """Count bytes that are delivered to the application."""
        stream.held += count
        self._held += count

    def consume(self, stream: StreamFlow, count: int, *, more: bool) -> None:
        """Give acknowledged bytes back to the windows; `more`: the peer may still send on this stream.

        Raise NotAllowed if `count` is larger than the number of unacknowledged bytes.
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
        """Give all bytes of a closed stream back to the session."""
        owed, stream.owed = stream.owed, 0
        self._held -= stream.held
        stream.held = 0
        self.give_back(owed)

    def give_back(self, count: int) -> None:
        """Give `count` bytes back to the session's window.

        They are announced once they reach half of the window. So the peer never waits while its bytes are consumed, and
        many bytes share a WINDOW_UPDATE.
        """
        self._given += count
        if self._given * 2 >= self._session_window:
            delta, self._given = self._given, 0
            self._left += delta
            self._update(0, delta)

    # Sending

    def room(self, stream: StreamFlow, most: int) -> int:
        """Return how many bytes, at most `most`, the peer allows on a stream now."""
        if not self._peer_has_windows:
            return most
        return max(0, min(most, self._initial_send + stream.send_moved, self._send_left))

    def spend(self, stream: StreamFlow, count: int) -> None:
        """Count sent bytes."""
        stream.send_moved -= count
        self._send_left -= count

    def widen_session(self, delta: int) -> bool:
        """Apply a WINDOW_UPDATE of the session; return whether it opens the window. Raise SessionError if invalid."""
        self._peer_has_windows = True
        was_shut = self._send_left <= 0
        self._send_left += delta
        if not delta or self._send_left > MAX_WINDOW:
            raise SessionError(f"WINDOW_UPDATE by {delta} for the session")
        return was_shut and self._send_left > 0

    def widen_stream(self, stream: StreamFlow | None, delta: int) -> bool:
        """Apply a WINDOW_UPDATE of a stream, None for a closed stream; return whether it opens the window.

        Raise StreamError if it is invalid.
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
        """Apply the initial window of the peer; return whether it may have opened the windows of streams.

        Raise SessionError if it exceeds MAX_WINDOW. The resulting windows of streams may exceed it, which is harmless
        and not checked.
        """
        if window > MAX_WINDOW:
            raise SessionError(f"an initial window of {window} bytes")
        self._peer_has_windows = True
        wider, self._initial_send = window > self._initial_send, window
        return wider
