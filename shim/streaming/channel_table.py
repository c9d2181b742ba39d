"""The table of a session's channels, which events of the client and of the session change."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from shim.domain.errors import Cancelled
from shim.streaming.channel import Channel, Sending
from shim.streaming.spdy import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResetStatus,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from shim.streaming.wire import Wire


class ChannelTable:
    """The channels of a session. All methods are called under the session's lock."""

    def __init__(self, wire: Wire, *, lock: threading.Lock) -> None:
        self._wire = wire
        self._lock = lock
        self._writable = threading.Condition(lock)
        self._opening = threading.Condition(lock)
        self._channels: dict[int, Channel] = {}
        self._opened: deque[Channel] = deque()
        self._fed: dict[int, Channel] = {}  # channels with bytes of the current read
        self._refusing = False  # refuse new streams of the client
        self.end_reason = ""
        """Why the session has ended; empty while it runs."""
        self.last_traffic = time.monotonic()
        """Time of the last bytes on any stream, by the monotonic clock."""
        self.on_change: Callable[[], object] | None = None

    # For the thread that serves the session

    def wait_opened(self, seconds: float | None) -> Channel | None:
        """Wait for the next stream of the client; None after `seconds`. Raise Cancelled if the client is gone."""
        self._opening.wait_for(lambda: self._opened or self.end_reason, seconds)
        if self._opened:
            return self._opened.popleft()
        if self.end_reason:
            raise Cancelled(self.end_reason)
        return None

    def refuse_new(self) -> None:
        """Reset all streams that the client opens from now on."""
        self._refusing = True

    def refuse_opened(self) -> None:
        """Reset the opened streams that `wait_opened` has not returned."""
        while self._opened:
            self._opened.popleft().refuse()

    def all(self) -> list[Channel]:
        """Return all open channels."""
        return list(self._channels.values())

    # Events of the client

    def receive(self, events: Iterable[Event], *, sending: Sending) -> None:
        """Process the events of a read. New channels use `sending`."""
        changed = False
        for event in events:
            self._act_on(event, sending)
            changed = changed or not isinstance(event, DataReceived)
        if self._finish_read() or changed:
            self._note_change()

    def _finish_read(self) -> bool:
        """Process the bytes of the current read; return whether bytes wait for a reader."""
        waiting = [channel.finish_read() for channel in self._fed.values()]
        self._fed.clear()
        return any(waiting)

    def _act_on(self, event: Event, sending: Sending) -> None:
        match event:
            case DataReceived():
                self.last_traffic = time.monotonic()
                if channel := self._channels.get(event.stream_id):
                    self._fed[channel.id] = channel
                    channel.feed(event.data)
            case StreamOpened():
                self._open(event, sending)
            case StreamHalfClosed():
                if channel := self._channels.get(event.stream_id):
                    channel.end()
                    self.forget_if_over(channel)
            case StreamReset():
                self._take_reset(event.stream_id)
            case WindowOpened():
                self._writable.notify_all()
            case ConnectionTerminated():
                self.terminate(f"the client has gone: {event.reason}")

    def _open(self, event: StreamOpened, sending: Sending) -> None:
        self.last_traffic = time.monotonic()
        if self._refusing:
            self._wire.reset(event.stream_id, ResetStatus.REFUSED_STREAM)
            return
        channel = Channel(
            event.stream_id, headers=event.headers, sending=sending, lock=self._lock, writable=self._writable
        )
        self._channels[event.stream_id] = channel
        self._opened.append(channel)
        self._opening.notify()

    def _take_reset(self, stream_id: int) -> None:
        channel = self._channels.pop(stream_id, None)
        if channel is None:
            return
        channel.mark_reset()
        # A client that opens and resets streams in a loop must not fill the queue.
        with suppress(ValueError):  # `wait_opened` has returned it
            self._opened.remove(channel)
        self._writable.notify_all()

    # Actions of the session

    def forget(self, channel: Channel) -> None:
        """Remove a channel. Idempotent."""
        self._channels.pop(channel.id, None)

    def forget_if_over(self, channel: Channel) -> None:
        """Remove a channel if both directions are closed."""
        if channel.over:
            self.forget(channel)

    def note_room(self) -> None:
        """Wake the writers that wait for room."""
        self._writable.notify_all()
        self._note_change()

    def terminate(self, why: str) -> None:
        """End all channels because the session has ended. Idempotent."""
        if self.end_reason:
            return
        self.end_reason = why
        for channel in self._channels.values():
            channel.terminate(why)
        self._opening.notify_all()
        self._writable.notify_all()
        self._note_change()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
