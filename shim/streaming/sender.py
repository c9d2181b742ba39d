"""The sending half of a session: what waits to be sent, and the poll for the connection.

Strategy: a writer queues its bytes and sends them itself, as far as the connection takes them at once. For the rest,
and to read again where that was paused, it wakes the session's thread, which waits in `wait` and calls `flush`.
"""

import select
import time
from collections import deque
from contextlib import suppress

from shim.base.wakeup import Waker
from shim.streaming.channel import Channel
from shim.streaming.channel_table import ChannelTable
from shim.streaming.pipe import Pipe
from shim.streaming.spdy import Buffer, NotAllowed, Queued
from shim.streaming.wire import Wire

_READ = select.POLLIN | select.POLLRDHUP


class Sender:
    """Sends for the channels (`shim.streaming.channel.Sending`). All but `wait` is called under the session's lock."""

    def __init__(self, pipe: Pipe, wire: Wire, channels: ChannelTable) -> None:
        self._pipe = pipe
        self._wire = wire
        self._channels = channels
        self._unsent: deque[Queued] = deque()
        self._short = False  # a writer waits for room
        self._poll = select.poll()
        self._waker: Waker | None = None
        self.polled = 0
        """What the poll waits for on the connection."""

    # For the channels

    def accept(self, channel: Channel) -> None:
        """Accept the stream."""
        with suppress(NotAllowed):  # the client has ended the stream in the meantime
            self._wire.reply(channel.id)
            self._send()

    def room(self, channel: Channel) -> int:
        """Return how many bytes may be queued; 0 to wait, NotAllowed when the stream is gone."""
        room = self._wire.send_window(channel.id)
        self._short = self._short or not room
        return room

    def put(self, channel: Channel, data: Buffer, *, fin: bool) -> None:
        """Queue and send bytes."""
        self._wire.send_data(channel.id, data, fin=fin)
        self._channels.last_traffic = time.monotonic()
        self._send()
        if fin:
            self._channels.forget_if_over(channel)

    def consumed(self, channel: Channel, count: int) -> None:
        """Return `count` bytes of window to the peer."""
        self._wire.acknowledge(channel.id, count)
        self._send()

    def reset(self, channel: Channel) -> None:
        """End the stream."""
        self._wire.reset(channel.id)
        self._channels.forget(channel)
        self._send()

    def _send(self) -> None:
        """Send what can be sent at once, and leave the rest, and reading again, to the session's thread."""
        if self._channels.lost:
            return
        if not self.polled & select.POLLOUT:
            try:
                self.flush()
            except OSError:  # the session's thread meets it too
                self.wake()
        if self._wanted() & ~self.polled:
            self.wake()

    # For the session and its thread

    @property
    def sent_all(self) -> bool:
        """Return whether the connection has taken all that was flushed."""
        return not self._unsent

    def flush(self) -> None:
        """Send what the connection takes now. OSError when it is lost."""
        while True:
            if not self._unsent:
                self._unsent.extend(self._wire.buffers_to_send())
                if self._short:
                    self._short = False
                    self._channels.note_room()
            if not self._unsent:
                return
            sent = self._pipe.send(self._unsent)
            if not sent:
                return
            self._drop(sent)

    def _drop(self, count: int) -> None:
        unsent = self._unsent
        while count:
            first = unsent[0]
            if len(first) > count:
                unsent[0] = memoryview(first)[count:]
                return
            count -= len(first)
            unsent.popleft()

    def _wanted(self, *, reading: bool = False) -> int:
        reading = reading or self._wire.wants_data
        return (_READ if reading else select.POLLRDHUP) | (select.POLLOUT if self._unsent else 0)

    def open(self) -> None:
        """Make `wake` wake a `wait` from now on. OSError where no descriptor is free."""
        self._waker = Waker()
        self._poll.register(self._waker, select.POLLIN)

    def prepare_wait(self, *, reading: bool = False) -> None:
        """Set what the next `wait` waits for; `reading`: for data although the protocol does not want any now."""
        wanted = self._wanted(reading=reading)
        if wanted != self.polled:
            self._poll.register(self._pipe.fileno(), wanted)
            self.polled = wanted

    def wait(self, seconds: float) -> int:
        """Wait for the connection or `wake`, and return the connection's events. Only for the session's thread."""
        if self._pipe.holds_data and self.polled & select.POLLIN:
            seconds = 0
        events = dict(self._poll.poll(seconds * 1000))
        if self._waker is not None and events.pop(self._waker.fileno(), 0):
            self._waker.drain()
        return next(iter(events.values()), 0)

    def wake(self) -> None:
        """End the `wait` under way, or the next one."""
        if self._waker is not None:
            self._waker.wake()

    def close(self) -> None:
        """Drop what was not sent, and close the connection. Idempotent."""
        self._unsent.clear()
        if self._waker is not None:
            self._waker.close()
        self._pipe.close()
