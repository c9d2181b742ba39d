"""The sending half of a session: the bytes to send, and the poll of the connection.

A writer queues its bytes and sends as many as the connection takes at once. Then it wakes the session's thread, which
waits in `wait`, to send the rest by `flush`, or to resume paused reading.
"""

import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from shim.base.wakeup import Waker
from shim.streaming.channel import Channel
from shim.streaming.channel_table import ChannelTable
from shim.streaming.pipe import Pipe
from shim.streaming.spdy import Buffer, NotAllowed, Queued
from shim.streaming.wire import Wire

_READ = select.POLLIN | select.POLLRDHUP


class Sender:
    """Implements `shim.streaming.channel.Sending`. All methods except `wait` are called under the session's lock."""

    def __init__(self, pipe: Pipe, wire: Wire, channels: ChannelTable) -> None:
        self._pipe = pipe
        self._wire = wire
        self._channels = channels
        self._unsent: deque[Queued] = deque()
        self._short = False  # a writer waits for room
        self._poll = select.poll()
        self._waker: Waker | None = None
        self.polled = 0
        """Events of the connection for which the poll waits."""
        self._sent = 0  # bytes that the connection has taken
        self._watched: dict[int, Callable[[], object]] = {}  # by descriptor, which the sender owns
        self._new: list[int] = []  # watched descriptors that are not polled yet
        self._closed = False

    # For the channels

    def accept(self, channel: Channel) -> None:
        """Accept the stream."""
        with suppress(NotAllowed):  # the client has closed the stream meanwhile
            self._wire.reply(channel.id)
            self._send()

    def room(self, channel: Channel) -> int:
        """Return how many bytes may be queued; 0 to wait. Raise NotAllowed if the stream is closed."""
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
        """Close the stream in both directions."""
        self._wire.reset(channel.id)
        self._channels.forget(channel)
        self._send()

    def _send(self) -> None:
        """Send as much as the connection takes; leave the rest to the session's thread, also to resume reading."""
        if self._channels.end_reason:
            return
        if not self.polled & select.POLLOUT:
            try:
                self.flush()
            except OSError:  # the session's thread gets the error too
                self.wake()
        if self._wanted() & ~self.polled:
            self.wake()

    # For the session and its thread

    @property
    def sent_all(self) -> bool:
        """Return whether the connection has taken all flushed bytes."""
        return not self._unsent

    def flush(self) -> None:
        """Send as much as the connection takes now. Raise OSError if it is lost."""
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
            self._sent += sent
            self._drop(sent)

    @property
    def delivered(self) -> int:
        """Return the approximate number of bytes that the client's side has received, to measure progress."""
        try:
            return self._sent - self._pipe.unsent()
        except (OSError, ValueError):  # closed
            return self._sent

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """Call `call` in the session's thread once `fd` is readable. The sender takes over and closes `fd`."""
        if self._closed:
            os.close(fd)
            return
        self._watched[fd] = call
        self._new.append(fd)
        self.wake()

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
        """Create the waker for `wake`. Raise OSError if no descriptor is free."""
        self._waker = Waker()
        self._poll.register(self._waker, select.POLLIN)

    def prepare_wait(self, *, reading: bool = False) -> None:
        """Set the events of the next `wait`. With `reading`, wait for data even if the protocol wants none now."""
        while self._new:
            self._poll.register(self._new.pop(), select.POLLIN)
        wanted = self._wanted(reading=reading)
        if wanted != self.polled:
            self._poll.register(self._pipe.fileno(), wanted)
            self.polled = wanted

    def wait(self, seconds: float) -> int:
        """Wait for the connection or `wake`; return the events of the connection. Only for the session's thread."""
        if self._pipe.holds_data and self.polled & select.POLLIN:
            seconds = 0
        events = dict(self._poll.poll(seconds * 1000))
        if self._waker is not None and events.pop(self._waker.fileno(), 0):
            self._waker.drain()
        for fd in [fd for fd in events if fd in self._watched]:
            del events[fd]
            self._poll.unregister(fd)
            call = self._watched.pop(fd)  # before the close, because another `watch` may then get the same number
            os.close(fd)
            call()
        return next(iter(events.values()), 0)

    def wake(self) -> None:
        """End the current `wait`, or the next."""
        if self._waker is not None:
            self._waker.wake()

    def close(self) -> None:
        """Drop unsent bytes and close the connection. Idempotent."""
        self._closed = True
        self._unsent.clear()
        while self._watched:
            os.close(self._watched.popitem()[0])
        if self._waker is not None:
            self._waker.close()
        self._pipe.close()
