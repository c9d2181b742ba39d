"""Between a process in Docker and its client: input, output and terminal size, each in a thread of its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog

from shim.base import deadline
from shim.domain.errors import ShimError
from shim.engine.interface import ProcessStream
from shim.engine.stdcopy import STDERR
from shim.streaming.channel import Channel
from shim.streaming.remotecommand import Sizes, Streams, TerminalSize, written

log = structlog.get_logger(__name__)


@contextmanager
def inputs(stream: ProcessStream, streams: Streams, *, resize: Callable[[TerminalSize], None]) -> Iterator[None]:
    """Pass input and terminal sizes on while the block copies the output."""
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


@dataclass(slots=True)
class Passed:
    """How far the output of a process has been copied."""

    pieces: int = 0
    """So many have been read."""
    writing: bool = False
    """The last of them waits for its client."""


def copy_output(stream: ProcessStream, streams: Streams, *, tty: bool, passed: Passed) -> None:
    """Copy output until its end, waiting while the client does not take it. Raise Cancelled when the client has gone.

    `passed` follows it, for other threads.
    """
    if tty:
        while piece := stream.read():
            _pass_on(streams.stdout, piece, passed)
        return
    for number, piece in stream.frames():
        _pass_on(streams.stderr if number == STDERR else streams.stdout, piece, passed)


def _pass_on(channel: Channel | None, piece: bytes, passed: Passed) -> None:
    passed.pieces += 1
    passed.writing = True
    written(channel, piece)
    passed.writing = False


def _copy_in(stream: ProcessStream, stdin: Channel, scope: deadline.Scope) -> None:
    with deadline.entered(scope):
        try:
            while piece := stdin.read():
                stream.write(piece)
            stream.close_stdin()
        except ShimError as error:
            # The process does not read any more, or the client has gone: the output shows which.
            log.debug("input closed early", error=error)
            stdin.abandon()


def _resize(sizes: Sizes, resize: Callable[[TerminalSize], None], scope: deadline.Scope) -> None:
    with deadline.entered(scope), suppress(ShimError):
        for size in sizes:
            try:
                resize(size)
            except ShimError as error:
                log.debug("failed to resize terminal", error=error)
