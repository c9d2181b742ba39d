"""The channels of one session, and what happens to them when the client or the session acts."""

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
    """The channels of a session. All is called under the session's lock."""

    def __init__(self, wire: Wire, *, lock: threading.Lock) -> None:
        self._wire = wire
        self._lock = lock
        self._roomy = threading.Condition(lock)
        self._opening = threading.Condition(lock)
        self._channels: dict[int, Channel] = {}
        self._opened: deque[Channel] = deque()
        self._fed: dict[int, Channel] = {}  # those for which the bytes just received had something
        self._refusing = False  # streams that the client opens from now on
        self.lost = ""
        """Why the session is over, once it is."""
        self.last_traffic = time.monotonic()
        """When something was sent or received on a stream."""
        self.on_change: Callable[[], object] | None = None

    # For the thread that serves the session

    def wait_opened(self, seconds: float | None) -> Channel | None:
        """Wait for the next stream the client opens; None when none came in `seconds`. Cancelled when it has gone."""
        self._opening.wait_for(lambda: self._opened or self.lost, seconds)
        if self._opened:
            return self._opened.popleft()
        if self.lost:
            raise Cancelled(self.lost)
        return None

    def refuse_new(self) -> None:
        """Reset the streams that the client opens from now on."""
        self._refusing = True

    def refuse_opened(self) -> None:
        """Reset the streams that were not taken."""
        while self._opened:
            self._opened.popleft().refuse()

    def all(self) -> list[Channel]:
        """Return the channels that are not over."""
        return list(self._channels.values())

    # What comes from the client

    def receive(self, events: Iterable[Event], *, sending: Sending) -> None:
        """Act on the events of one read; `sending` is given to new channels."""
        changed = False
        for event in events:
            self._act_on(event, sending)
            changed = changed or not isinstance(event, DataReceived)
        if self._settle() or changed:
            self._note_change()

    def _settle(self) -> bool:
        """Release the bytes just received; return whether some are queued for a reader."""
        waiting = [channel.settle() for channel in self._fed.values()]
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
                self._void(event.stream_id)
            case WindowOpened():
                self._roomy.notify_all()
            case ConnectionTerminated():
                self.lose(f"the client has gone: {event.reason}")

    def _open(self, event: StreamOpened, sending: Sending) -> None:
        self.last_traffic = time.monotonic()
        if self._refusing:
            self._wire.reset(event.stream_id, ResetStatus.REFUSED_STREAM)
            return
        channel = Channel(event.stream_id, headers=event.headers, sending=sending, lock=self._lock, roomy=self._roomy)
        self._channels[event.stream_id] = channel
        self._opened.append(channel)
        self._opening.notify()

    def _void(self, stream_id: int) -> None:
        channel = self._channels.pop(stream_id, None)
        if channel is None:
            return
        channel.void()
        # It may never be taken: a client that goes on opening and resetting would fill the memory.
        with suppress(ValueError):  # it was taken
            self._opened.remove(channel)
        self._roomy.notify_all()

    # What the session does

    def forget(self, channel: Channel) -> None:
        """Remove a channel: nothing that the client sends concerns it any more. Idempotent."""
        self._channels.pop(channel.id, None)

    def forget_if_over(self, channel: Channel) -> None:
        """Remove a channel that has ended both ways."""
        if channel.over:
            self.forget(channel)

    def note_room(self) -> None:
        """Wake the writers that wait for room."""
        self._roomy.notify_all()
        self._note_change()

    def lose(self, why: str) -> None:
        """End all channels: the session is over. Idempotent."""
        if self.lost:
            return
        self.lost = why
        for channel in self._channels.values():
            channel.lose(why)
        self._opening.notify_all()
        self._roomy.notify_all()
        self._note_change()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()
