"""Copies input, output and terminal sizes between a process in Docker and its client, each in its own thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from shim.base import deadline
from shim.domain.errors import ShimError
from shim.engine.interface import ProcessStream
from shim.engine.stdcopy import STDERR
from shim.streaming.backlog import Backlog, Room
from shim.streaming.channel import Channel
from shim.streaming.remotecommand import Sizes, Streams, TerminalSize
from shim.streaming.spdy import Buffer
from shim.streaming.stalls import StallPolicy, write_with_policy

log = structlog.get_logger(__name__)


@contextmanager
def inputs(stream: ProcessStream, streams: Streams, *, resize: Callable[[TerminalSize], None]) -> Iterator[None]:
    """Forward input and terminal sizes to the process while the block copies the output."""
    threads = []
    scope = deadline.current()
    if streams.stdin is not None:
        threads.append(threading.Thread(target=_copy_in, args=(stream, streams.stdin, scope), name="stdin"))
    if streams.resize is not None:
        threads.append(threading.Thread(target=_resize, args=(streams.resize, resize, scope), name="resize"))
    started = []
    try:
        for thread in threads:
            thread.daemon = True
            thread.start()
            started.append(thread)
        yield
    finally:
        for read in (streams.stdin, streams.resize):
            if read is not None:
                read.abandon()
        stream.close()
        for thread in started:
            thread.join()


class Output:
    """Copies the output of a process to its client, which may read slowly or not at all.

    Until the output of an ended process has been read, Docker reports no exit of its container or of other execs in it.
    So after `process_ended` all output is read at once, and waits in a `Backlog` for the client. Before that, the
    process waits for the client, as long as `patience` allows.
    """

    def __init__(
        self, stream: ProcessStream, streams: Streams, *, tty: bool, patience: StallPolicy, room: Room
    ) -> None:
        self._stream = stream
        self._streams = streams
        self._tty = tty
        self._patience = patience
        self._room = room
        self._backlog: Backlog | None = None
        self._ended = False
        self.pieces = 0
        """Number of pieces read."""

    def process_ended(self) -> None:
        """Record that the process has ended. Idempotent, thread-safe, and does not block."""
        self._ended = True
        self._streams.session.wake_writers()

    def copy(self) -> None:
        """Read all output to its end. Raise Cancelled if the client is gone, Stalled if it reads too slowly."""
        try:
            self._copy()
        except ShimError as error:
            if self._backlog is not None:
                self._backlog.fail(error)
            raise

    def _copy(self) -> None:
        streams = self._streams
        if self._tty:
            while piece := self._stream.read():
                self._pass_on(streams.stdout, piece)
            return
        for number, piece in self._stream.frames():
            self._pass_on(streams.stderr if number == STDERR else streams.stdout, piece)

    def deliver(self) -> None:
        """Wait until the client has read the rest. Raise Cancelled if it is gone."""
        if self._backlog is not None:
            self._backlog.finish()

    def _pass_on(self, channel: Channel | None, piece: Buffer) -> None:
        self.pieces += 1
        if channel is None:
            return
        if self._backlog is None:
            piece = write_with_policy(channel, piece, self._patience, unless=lambda: self._ended)
            if not piece:
                return
            self._backlog = Backlog(self._room)
        self._backlog.put(channel, piece)


def _copy_in(stream: ProcessStream, stdin: Channel, scope: deadline.Scope) -> None:
    with deadline.entered(scope):
        try:
            while piece := stdin.read():
                stream.write(piece)
            stream.close_stdin()
        except ShimError as error:
            # The process does not read any more, or the client is gone; copying the output detects which.
            log.debug("input closed early", error=error)
            stdin.abandon()


def _resize(sizes: Sizes, resize: Callable[[TerminalSize], None], scope: deadline.Scope) -> None:
    with deadline.entered(scope), suppress(ShimError):
        for size in sizes:
            try:
                resize(size)
            except ShimError as error:
                log.debug("failed to resize terminal", error=error)
