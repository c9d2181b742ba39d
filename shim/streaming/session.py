"""A session: the connection of a client, its protocol, and the channels that threads read and write.

The session's thread polls the connection and waits for nothing else, so that it notices a disconnect or a ping even if
processes and ports are slow. Writers send directly as much as the connection takes at once; the session's thread sends
the rest. The windows and queues of the protocol, and the number of streams of the task, limit the memory.

`Session` has the loop of the session's thread, and methods for the thread that serves the task. Input of the client
goes through the `ChannelTable`, output through the `Sender`. A single lock guards all of them and the protocol.
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
"""Seconds between two calls of a session's watchers."""

LINGER = 10.0
"""Seconds for the client to close the connection once it has received everything."""

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL

log = structlog.get_logger(__name__)


class Session:
    """An upgraded connection. Thread-safe; `run` needs a separate thread."""

    def __init__(self, pipe: Pipe, wire: Wire, *, idle_timeout: float, early: bytes = b"") -> None:
        """`idle_timeout` is in seconds, 0 for none. `early` are bytes received after the HTTP request."""
        self.scope = Scope()
        """Cancelled when the client disconnects."""
        self._pipe = pipe
        self._wire = wire
        self._early = early
        self._idle_timeout = idle_timeout or None
        self._lock = threading.Lock()
        self._channels = ChannelTable(wire, lock=self._lock)
        self._sender = Sender(pipe, wire, self._channels)
        self._watchers: list[Callable[[], object]] = []
        self._check_at = 0.0  # time of the next call of the watchers, by the monotonic clock
        self._pace = Pace()
        self._finishing = False

    # For the thread that serves the session

    def next_channel(self, *, seconds: float | None = None) -> Channel | None:
        """Wait for the next stream of the client; None after `seconds`. Raise Cancelled if the client is gone."""
        with self._lock:
            return self._channels.wait_opened(seconds)

    @property
    def fixed(self) -> bool:
        """Whether the set of streams is fixed: the client can neither open nor close single streams."""
        with self._lock:
            return self._wire.fixed

    def on_change(self, call: Callable[[], object] | None) -> None:
        """Call `call` whenever streams, their input, or the room for output may have changed. It must not block."""
        with self._lock:
            self._channels.on_change = call

    def refuse_streams(self) -> None:
        """Reset opened streams that `next_channel` has not returned, and all later streams."""
        with self._lock:
            self._channels.refuse_new()
            self._channels.refuse_opened()

    def watch(self, check: Callable[[], object]) -> None:
        """Call `check` every TICK seconds in the session's thread until the session ends. It must not block."""
        with self._lock:
            self._watchers.append(check)
            self._sender.wake()

    def when_ended(self, process: ProcessHandle, call: Callable[[], object]) -> None:
        """Call `call` once in the session's thread after the process has ended. It must not block."""
        with self._lock:
            self._sender.watch(os.dup(process.fileno()), call)

    def delivered(self) -> int:
        """Return the approximate number of bytes that the client has received, to measure progress."""
        with self._lock:
            return self._sender.delivered

    def wake_writers(self) -> None:
        """Make each waiting `Channel.write` evaluate its `unless` again."""
        with self._lock:
            self._channels.note_room()

    def finish(self) -> None:
        """End the session gracefully: send queued bytes, then wait until the client closes. Idempotent."""
        with self._lock:
            if not self._channels.end_reason and not self._finishing:
                self._wire.goaway()
            self._finishing = True
            self._channels.refuse_new()
            channels = self._channels.all()
            self._sender.wake()
        for channel in channels:
            channel.abandon()

    def end(self, why: str) -> None:
        """End the session at once. Idempotent; any thread may call it."""
        with self._lock:
            self._channels.terminate(why)
            self._sender.wake()
        self.scope.cancel()

    def close(self, why: str) -> None:
        """End the session at once and close its connection. Call this only if `run` has ended or was never started."""
        with self._lock:
            self._channels.terminate(why)
            self._sender.close()
        self.scope.cancel()

    # The loop

    def run(self) -> None:
        """Serve the connection until the session is over, then close it."""
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
        """Send and receive until the client disconnects, or has received everything after `finish`."""
        while not self._channels.end_reason:
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
        """Wait for the connection and serve it once; return False at its end."""
        with self._lock:
            self._sender.flush()
            self._sender.prepare_wait()
        ready = self._sender.wait(self._poll_seconds())
        self._check_watchers()
        if self._sender.polled & select.POLLIN and (ready & select.POLLIN or self._pipe.holds_data):
            return self._receive_some()
        # While reading is paused, only poll reports the end of the connection.
        return not ready & _GONE

    def _receive_some(self) -> bool:
        """Receive and process available bytes; return False at EOF."""
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
        """Let the client close first. A close here could discard bytes that it has not read (RFC 1122, 4.2.2.13)."""
        until = time.monotonic() + LINGER
        while (now := time.monotonic()) < until or self._delivering(now):
            with self._lock:
                self._sender.flush()
                if self._channels.end_reason and self._sender.sent_all:
                    return
                self._sender.prepare_wait(reading=True)
            ready = self._sender.wait(TICK)
            if ready & select.POLLIN and self._pipe.receive(MAX_READ) == b"":
                return
            if ready & (select.POLLHUP | select.POLLERR):
                return

    def _delivering(self, now: float) -> bool:
        """Return whether a connected but slow client has not received everything yet."""
        idle = self._idle_timeout is not None and now - self._channels.last_traffic > self._idle_timeout
        return not self._channels.end_reason and not idle and self._pipe.unsent() > 0

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
                self._channels.terminate("the client has ended the session")
