"""One session: a client's connection, the protocol on it, and the channels that threads read and write.

One thread polls the connection and never waits for anything else, so that a client that goes away, or a ping, is
noticed while processes and ports are slow. Writers queue and send for themselves when the connection takes it at once;
what it does not take, that thread sends. Memory is bounded by the protocol's windows, by what it lets be queued, and by
the number of streams, which is the task's.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import structlog

from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, reason_of
from shim.streaming.channel import Channel
from shim.streaming.pace import MOST, Pace
from shim.streaming.pipe import Pipe
from shim.streaming.spdy import (
    Buffer,
    ConnectionTerminated,
    DataReceived,
    Event,
    NotAllowed,
    Queued,
    ResetStatus,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from shim.streaming.wire import Wire

TICK = 2.0
"""Seconds between two calls of the watchers of a session."""

LINGER = 10.0
"""Seconds that a client which has got everything may take to close."""

_READ = select.POLLIN | select.POLLRDHUP
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL

log = structlog.get_logger(__name__)


class Session:
    """An upgraded connection. Thread-safe; `run` has a thread of its own."""

    def __init__(self, pipe: Pipe, wire: Wire, *, idle_timeout: float, early: bytes = b"") -> None:
        """`idle_timeout` in seconds, 0 for none. `early` is what came from the client with its request."""
        self.scope = Scope()
        """Cancelled when the client has gone."""
        self._pipe = pipe
        self._wire = wire
        self._early = early
        self._idle_timeout = idle_timeout or None
        self._lock = threading.Lock()
        self._roomy = threading.Condition(self._lock)
        self._opening = threading.Condition(self._lock)
        self._opened: deque[Channel] = deque()
        self._refusing = False  # streams that the client opens from now on
        self._channels: dict[int, Channel] = {}
        self._fed: dict[int, Channel] = {}  # those for which the bytes just received had something
        self._unsent: deque[Queued] = deque()
        self._short = False  # a writer waits for room
        self._watchers: list[Callable[[], object]] = []
        self._on_change: Callable[[], object] | None = None
        self._look_at = 0.0  # when they are called next, by the monotonic clock
        self._waker = -1
        self._pace = Pace()
        self._poll = select.poll()
        self._polled = 0  # what the poll waits for on the connection
        self._finishing = False
        self._over = ""  # why, once it is
        self._last_traffic = time.monotonic()

    # For the thread that serves the session

    def next_channel(self, *, seconds: float | None = None) -> Channel | None:
        """Wait for the next stream the client opens; None when none came in `seconds`. Cancelled when it has gone."""
        with self._lock:
            self._opening.wait_for(lambda: self._opened or self._over, seconds)
            if self._opened:
                return self._opened.popleft()
            if self._over:
                raise Cancelled(self._over)
            return None

    @property
    def fixed(self) -> bool:
        """Return whether no further stream will be opened, and the client cannot end one alone."""
        with self._lock:
            return self._wire.fixed

    def on_change(self, call: Callable[[], object] | None) -> None:
        """Call `call` whenever streams, what came on them, or the room to write may have changed. It must be short."""
        with self._lock:
            self._on_change = call

    def refuse_streams(self) -> None:
        """Reset the streams that were not taken, and those that the client opens from now on."""
        with self._lock:
            self._refusing = True
            while self._opened:
                self._opened.popleft().refuse()

    def watch(self, look: Callable[[], object]) -> None:
        """Call `look` every TICK from now on, until the session ends. It must not wait: nothing is read meanwhile."""
        with self._lock:
            self._watchers.append(look)
            self._wake()

    def finish(self) -> None:
        """End the session in order: what is queued is sent, then the client closes. Idempotent."""
        with self._lock:
            if not self._over and not self._finishing:
                self._wire.goaway()
            self._finishing = True
            channels = list(self._channels.values())
            self._wake()
        for channel in channels:
            channel.abandon()

    def end(self, why: str) -> None:
        """End the session at once. Idempotent, from any thread."""
        with self._lock:
            self._lose(why)
            self._wake()
        self.scope.cancel()

    def close(self, why: str) -> None:
        """End the session at once and close its connection, where `run` has ended or no thread could begin it."""
        with self._lock:
            self._lose(why)
            self._unsent.clear()
            if self._waker >= 0:
                os.close(self._waker)
                self._waker = -1
            self._pipe.close()
        self.scope.cancel()

    # The loop

    def run(self) -> None:
        """Serve the connection until it is over, then close it."""
        why = "the client has gone"
        try:
            self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._poll.register(self._waker, select.POLLIN)
            self._receive(self._early)
            self._early = b""
            self._exchange()
        except OSError as error:
            why = f"the connection to the client is lost: {reason_of(error)}"
        finally:
            self.close(why)

    def _exchange(self) -> None:
        """Send and receive until the client has gone, or has got everything after `finish`."""
        while not self._over:
            if self._finishing and self._all_sent():
                self._pipe.end_sending()
                self._linger()
                return
            if not self._exchanged_some():
                return
        self.scope.cancel()
        self._linger()
        self._pipe.end_sending()

    def _exchanged_some(self) -> bool:
        """Wait for the connection and serve it once; False at its end."""
        with self._lock:
            self._flush()
            self._set_poll()
        ready = self._wait(self._poll_seconds())
        self._look()
        if self._polled & select.POLLIN and (ready & select.POLLIN or self._pipe.holds_data):
            return self._received_some()
        # While nothing is read for want of room, the end of the connection is told by the poll alone.
        return not ready & _GONE

    def _received_some(self) -> bool:
        """Receive what is there and act on it; False at the end."""
        began = self._pace.begin()
        try:
            data = self._pipe.receive(self._pace.size)
            if data is not None:
                self._receive(data)
            return data is None or bool(data)
        finally:
            self._pace.end(began)

    def _all_sent(self) -> bool:
        with self._lock:
            self._flush()
            return not self._unsent

    def _linger(self) -> None:
        """Wait for the client to close: to close first could cost it what it has not read yet (RFC 1122, 4.2.2.13)."""
        until = time.monotonic() + LINGER
        while (now := time.monotonic()) < until or self._delivering(now):
            with self._lock:
                self._flush()
                if self._over and not self._unsent:
                    return
                self._set_poll(reading=True)
            ready = self._wait(TICK)
            if ready & select.POLLIN and self._pipe.receive(MOST) == b"":
                return
            if ready & (select.POLLHUP | select.POLLERR):
                return

    def _delivering(self, now: float) -> bool:
        """Return whether a client that is slow, but present, has not received everything yet."""
        idle = self._idle_timeout is not None and now - self._last_traffic > self._idle_timeout
        return not self._over and not idle and self._pipe.unsent() > 0

    def _wait(self, seconds: float) -> int:
        if self._pipe.holds_data and self._polled & select.POLLIN:
            seconds = 0
        events = dict(self._poll.poll(seconds * 1000))
        if events.pop(self._waker, 0):
            os.eventfd_read(self._waker)
        return next(iter(events.values()), 0)

    def _poll_seconds(self) -> float:
        if self._watchers:
            return max(0.0, self._look_at - time.monotonic()) + 0.001
        if self._idle_timeout is None:
            return 3600.0
        return max(0.0, self._last_traffic + self._idle_timeout - time.monotonic()) + 0.001

    def _look(self) -> None:
        now = time.monotonic()
        if self._watchers and now >= self._look_at:
            self._look_at = now + TICK
            for look in self._watchers:
                look()
        if self._idle_timeout and now - self._last_traffic > self._idle_timeout:
            log.info("idle streaming session ended", seconds=self._idle_timeout)
            self.end(f"nothing was sent either way for {self._idle_timeout:g} s")

    # What comes from the client

    def _receive(self, data: bytes) -> None:
        with self._lock:
            events = self._wire.receive_data(data) if data or not self._polled else self._wire.receive_eof()
            changed = False
            for event in events:
                self._act_on(event)
                changed = changed or not isinstance(event, DataReceived)
            if self._settle() or changed:
                self._note_change()
            if self._wire.closed and not self._finishing:
                self._lose("the client has ended the session")

    def _settle(self) -> bool:
        """Release the bytes just received; return whether some are queued for a reader."""
        waiting = [channel.settle() for channel in self._fed.values()]
        self._fed.clear()
        return any(waiting)

    def _act_on(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._last_traffic = time.monotonic()
                if channel := self._channels.get(event.stream_id):
                    self._fed[channel.id] = channel
                    channel.feed(event.data)
            case StreamOpened():
                self._open(event)
            case StreamHalfClosed():
                if channel := self._channels.get(event.stream_id):
                    channel.end()
                    self._forget_if_over(channel)
            case StreamReset():
                self._void(event.stream_id)
            case WindowOpened():
                self._roomy.notify_all()
            case ConnectionTerminated():
                self._lose(f"the client has gone: {event.reason}")

    def _open(self, event: StreamOpened) -> None:
        self._last_traffic = time.monotonic()
        if self._finishing or self._refusing:
            self._wire.reset(event.stream_id, ResetStatus.REFUSED_STREAM)
            return
        channel = Channel(event.stream_id, headers=event.headers, sending=self, lock=self._lock, roomy=self._roomy)
        self._channels[event.stream_id] = channel
        self._opened.append(channel)
        self._opening.notify()

    def _void(self, stream_id: int) -> None:
        channel = self._channels.pop(stream_id, None)
        if channel is None:
            return
        channel.void()
        # Nobody may ever ask for it: a client that goes on opening and resetting would fill the memory.
        with suppress(ValueError):  # it was taken
            self._opened.remove(channel)
        self._roomy.notify_all()

    def _lose(self, why: str) -> None:
        if self._over:
            return
        self._over = why
        for channel in self._channels.values():
            channel.lose(why)
        self._opening.notify_all()
        self._roomy.notify_all()
        self._note_change()

    def _note_change(self) -> None:
        if self._on_change is not None:
            self._on_change()

    # Sending, under the lock (see `shim.streaming.channel.Sending`)

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
        self._last_traffic = time.monotonic()
        self._send()
        if fin:
            self._forget_if_over(channel)

    def consumed(self, channel: Channel, count: int) -> None:
        """Return `count` bytes of window to the peer."""
        self._wire.acknowledge(channel.id, count)
        self._send()

    def reset(self, channel: Channel) -> None:
        """End the stream."""
        self._wire.reset(channel.id)
        self._channels.pop(channel.id, None)
        self._send()

    def _forget_if_over(self, channel: Channel) -> None:
        if channel.over:
            self._channels.pop(channel.id, None)

    def _send(self) -> None:
        """Send what can be sent at once, and leave the rest, and reading again, to the loop."""
        if self._over:
            return
        if not self._polled & select.POLLOUT:
            try:
                self._flush()
            except OSError:  # the loop meets it too
                self._wake()
        if self._wanted() & ~self._polled:
            self._wake()

    def _flush(self) -> None:
        while True:
            if not self._unsent:
                self._unsent.extend(self._wire.buffers_to_send())
                if self._short:
                    self._short = False
                    self._roomy.notify_all()
                    self._note_change()
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

    def _set_poll(self, *, reading: bool = False) -> None:
        wanted = self._wanted(reading=reading)
        if wanted != self._polled:
            self._poll.register(self._pipe.fileno(), wanted)
            self._polled = wanted

    def _wake(self) -> None:
        if self._waker >= 0:
            os.eventfd_write(self._waker, 1)
