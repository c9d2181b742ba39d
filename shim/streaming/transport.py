"""One session: a client's connection, the protocol on it, and the channels that threads read and write.

One thread polls the connection and never waits for anything else, so that a client that goes away, or a ping, is
noticed while processes and ports are slow. Writers queue and send for themselves when the connection takes it at once;
what it does not take, that thread sends. Memory is bounded by the protocol's windows, by what it lets be queued, and by
the number of streams, which is the task's.

A `Session` is its thread and what the thread that serves it calls. What the client sends goes through its
`ChannelTable`, what it gets through its `Sender`; one lock guards the three of them and the protocol.
"""

import os
import select
import threading
import time
from collections.abc import Callable

import structlog

from shim.base.deadline import Scope
from shim.base.process import ProcessHandle
from shim.domain.errors import reason_of
from shim.streaming.channel import Channel
from shim.streaming.channel_table import ChannelTable
from shim.streaming.pace import MAX_READ, Pace
from shim.streaming.pipe import Pipe
from shim.streaming.sender import Sender
from shim.streaming.wire import Wire

TICK = 2.0
"""Seconds between two calls of the watchers of a session."""

LINGER = 10.0
"""Seconds that a client which has got everything may take to close."""

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
        self._channels = ChannelTable(wire, lock=self._lock)
        self._sender = Sender(pipe, wire, self._channels)
        self._watchers: list[Callable[[], object]] = []
        self._check_at = 0.0  # when they are called next, by the monotonic clock
        self._pace = Pace()
        self._finishing = False

    # For the thread that serves the session

    def next_channel(self, *, seconds: float | None = None) -> Channel | None:
        """Wait for the next stream the client opens; None when none came in `seconds`. Cancelled when it has gone."""
        with self._lock:
            return self._channels.wait_opened(seconds)

    @property
    def fixed(self) -> bool:
        """Return whether no further stream will be opened, and the client cannot end one alone."""
        with self._lock:
            return self._wire.fixed

    def on_change(self, call: Callable[[], object] | None) -> None:
        """Call `call` whenever streams, what came on them, or the room to write may have changed. It must be short."""
        with self._lock:
            self._channels.on_change = call

    def refuse_streams(self) -> None:
        """Reset the streams that were not taken, and those that the client opens from now on."""
        with self._lock:
            self._channels.refuse_new()
            self._channels.refuse_opened()

    def watch(self, check: Callable[[], object]) -> None:
        """Call `check` every TICK from now on, until the session ends. It must not wait: reading does."""
        with self._lock:
            self._watchers.append(check)
            self._sender.wake()

    def when_ended(self, process: ProcessHandle, call: Callable[[], object]) -> None:
        """Call `call` once, in the thread of the session, when the process has ended. It must not wait."""
        with self._lock:
            self._sender.watch(os.dup(process.fileno()), call)

    def delivered(self) -> int:
        """Return about how many bytes the client has taken, to be compared with a later count."""
        with self._lock:
            return self._sender.delivered

    def wake_writers(self) -> None:
        """Have each `Channel.write` that waits look at its `unless` again."""
        with self._lock:
            self._channels.note_room()

    def finish(self) -> None:
        """End the session in order: what is queued is sent, then the client closes. Idempotent."""
        with self._lock:
            if not self._channels.lost and not self._finishing:
                self._wire.goaway()
            self._finishing = True
            self._channels.refuse_new()
            channels = self._channels.all()
            self._sender.wake()
        for channel in channels:
            channel.abandon()

    def end(self, why: str) -> None:
        """End the session at once. Idempotent, from any thread."""
        with self._lock:
            self._channels.lose(why)
            self._sender.wake()
        self.scope.cancel()

    def close(self, why: str) -> None:
        """End the session at once and close its connection, where `run` has ended or no thread could begin it."""
        with self._lock:
            self._channels.lose(why)
            self._sender.close()
        self.scope.cancel()

    # The loop

    def run(self) -> None:
        """Serve the connection until it is over, then close it."""
        why = "the client has gone"
        try:
            self._sender.open()
            self._receive(self._early)
            self._early = b""
            self._exchange()
        except OSError as error:
            why = f"the connection to the client is lost: {reason_of(error)}"
        finally:
            self.close(why)

    def _exchange(self) -> None:
        """Send and receive until the client has gone, or has got everything after `finish`."""
        while not self._channels.lost:
            if self._finishing and self._all_sent():
                self._pipe.end_sending()
                self._linger()
                return
            if not self._exchange_some():
                return
        self.scope.cancel()
        self._linger()
        self._pipe.end_sending()

    def _exchange_some(self) -> bool:
        """Wait for the connection and serve it once; False at its end."""
        with self._lock:
            self._sender.flush()
            self._sender.prepare_wait()
        ready = self._sender.wait(self._poll_seconds())
        self._check_watchers()
        if self._sender.polled & select.POLLIN and (ready & select.POLLIN or self._pipe.holds_data):
            return self._receive_some()
        # While nothing is read without room for it, the end of the connection is reported by the poll alone.
        return not ready & _GONE

    def _receive_some(self) -> bool:
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
            self._sender.flush()
            return self._sender.sent_all

    def _linger(self) -> None:
        """Wait for the client to close: to close first could cost it what it has not read yet (RFC 1122, 4.2.2.13)."""
        until = time.monotonic() + LINGER
        while (now := time.monotonic()) < until or self._delivering(now):
            with self._lock:
                self._sender.flush()
                if self._channels.lost and self._sender.sent_all:
                    return
                self._sender.prepare_wait(reading=True)
            ready = self._sender.wait(TICK)
            if ready & select.POLLIN and self._pipe.receive(MAX_READ) == b"":
                return
            if ready & (select.POLLHUP | select.POLLERR):
                return

    def _delivering(self, now: float) -> bool:
        """Return whether a client that is slow, but present, has not received everything yet."""
        idle = self._idle_timeout is not None and now - self._channels.last_traffic > self._idle_timeout
        return not self._channels.lost and not idle and self._pipe.unsent() > 0

    def _poll_seconds(self) -> float:
        if self._watchers:
            return max(0.0, self._check_at - time.monotonic()) + 0.001
        if self._idle_timeout is None:
            return 3600.0
        return max(0.0, self._channels.last_traffic + self._idle_timeout - time.monotonic()) + 0.001

    def _check_watchers(self) -> None:
        now = time.monotonic()
        if self._watchers and now >= self._check_at:
            self._check_at = now + TICK
            for check in self._watchers:
                check()
        if self._idle_timeout and now - self._channels.last_traffic > self._idle_timeout:
            log.info("idle streaming session ended", seconds=self._idle_timeout)
            self.end(f"nothing was sent either way for {self._idle_timeout:g} s")

    def _receive(self, data: bytes) -> None:
        with self._lock:
            events = self._wire.receive_data(data) if data or not self._sender.polled else self._wire.receive_eof()
            self._channels.receive(events, sending=self._sender)
            if self._wire.closed and not self._finishing:
                self._channels.lose("the client has ended the session")
