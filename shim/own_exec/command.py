"""A command that runs by the server's own exec: its streams, its terminal and its end."""

import errno
import fcntl
import math
import os
import select
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shim.base import deadline
from shim.base.wakeup import Waker
from shim.domain.errors import ShimError
from shim.own_exec.client import Running

STDOUT, STDERR = 1, 2

DRAIN_SECONDS = 2.0
"""How long output is read after the end of the command: its background processes may hold the pipes open.
Docker reads on as long."""

_READ_BYTES = 64 << 10
"""A pipe holds as much."""


class Streams:
    """The ends of a command's pipes, or of its terminal. One thread reads, one may write; any may `close`."""

    def __init__(self, *, stdin: bool, tty: bool) -> None:
        """Make the pipes. OSError where no descriptor is free."""
        self._ours: dict[int, int] = {}
        """Descriptors that are read, by the number of the stream."""
        self._stdin = -1
        self._theirs: list[int] = []
        self._tty = tty
        self._closed = Waker()
        self._is_closed = False
        self._running: Running | None = None
        self._drained_at = math.inf
        """When reading ends, by the monotonic clock: once the command has ended."""
        self._what = ""
        try:
            self._make(stdin=stdin and not tty)
        except BaseException:
            self.release()
            raise

    def _make(self, *, stdin: bool) -> None:
        if stdin:
            theirs, self._stdin = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._stdin, False)
        else:
            theirs = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._theirs.append(theirs)
        for number in (STDOUT, STDERR):
            if self._tty:
                self._theirs.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                continue
            self._ours[number], theirs = os.pipe2(os.O_CLOEXEC)
            self._theirs.append(theirs)
            # Whoever has the other end may open it for reading too, and take what a poll has announced.
            os.set_blocking(self._ours[number], False)

    @property
    def theirs(self) -> list[int]:
        """Return the command's ends: of stdin, stdout and stderr."""
        return self._theirs

    def begin(self, running: Running, *, what: str) -> None:
        """Use the streams of a command that has begun; `what` names it in messages."""
        self._close_theirs()
        self._running = running
        self._what = what
        if self._tty:
            self._ours[STDOUT] = self._stdin = terminal = running.take_terminal()
            os.set_blocking(terminal, False)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (STDOUT or STDERR, bytes) until the command has closed both, or DRAIN_SECONDS after its end.

        A scope that expires ends this iterator only; a new iterator continues at the same position.
        """
        while self._ours and (ready := self._wait_readable()):
            for number in ready:
                piece = self._read(number)
                if piece:
                    yield number, piece
                elif piece is not None:
                    self._close_ours(number)

    def output(self, *, most: int) -> dict[int, bytes]:
        """Take the output to its end; return the first `most` bytes of STDOUT and of STDERR. The rest is dropped."""
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        for number, piece in self.frames():
            kept[number] += piece[: most - len(kept[number])]
        return {number: bytes(content) for number, content in kept.items()}

    def read(self) -> bytes:
        """Wait for the next output of a command with a terminal; return nothing at its end."""
        return next((piece for _, piece in self.frames()), b"")

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` to the command's input, waiting while it does not read. ShimError when it never will."""
        rest = memoryview(data)
        while rest and not self._is_closed:
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                raise ShimError(f"{self._what}: the command does not read its input any more") from error

    def close_stdin(self) -> None:
        """Close the command's input; its output still comes. A terminal stays."""
        if not self._tty and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def resize(self, *, width: int, height: int) -> None:
        """Set the size of the command's terminal, in characters."""
        if self._tty and not self._is_closed:
            with suppress(OSError):  # the command has ended
                fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close(self) -> None:
        """End reads and writes, also those that block. Idempotent, from any thread."""
        self._is_closed = True
        self._closed.wake()

    def release(self) -> None:
        """Close all descriptors, once no thread uses them any more."""
        self._close_theirs()
        if self._stdin >= 0:  # of a terminal too
            os.close(self._stdin)
            self._stdin = -1
        for number in list(self._ours):
            self._close_ours(number)
        self._closed.close()

    def _close_theirs(self) -> None:
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs = []

    def _close_ours(self, number: int) -> None:
        descriptor = self._ours.pop(number)
        if not self._tty:  # until `release` other threads may write to a terminal, or resize it
            os.close(descriptor)

    def _read(self, number: int) -> bytes | None:
        """Return what there is; nothing at the end, None if there is nothing now."""
        try:
            return os.read(self._ours[number], _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:  # nobody has the terminal open any more
                return b""
            raise

    def _wait_readable(self) -> list[int]:
        """Wait for output; return the streams that have some, or their end. None once it is not waited for any more."""
        assert self._running is not None  # noqa: S101 - it is read after `begin`
        ended = self._running.ended
        numbers = {descriptor: number for number, descriptor in self._ours.items()}
        poll = select.poll()
        for descriptor in numbers:
            poll.register(descriptor, select.POLLIN)
        if self._drained_at == math.inf:
            poll.register(ended, select.POLLIN)
        with self._interruptible(poll) as scope:
            while not self._is_closed and (left := self._drained_at - time.monotonic()) > 0:
                scope.check(self._what)
                ready = {descriptor for descriptor, _ in poll.poll(_milliseconds(scope.remaining(left)))}
                if ended.fileno() in ready:
                    poll.unregister(ended)
                    self._drained_at = time.monotonic() + DRAIN_SECONDS
                if found := [numbers[descriptor] for descriptor in ready if descriptor in numbers]:
                    return found
        return []

    def _wait_writable(self) -> None:
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        with self._interruptible(poll) as scope:
            poll.poll(_milliseconds(scope.remaining()))
            scope.check(self._what)

    @contextmanager
    def _interruptible(self, poll: "select.poll") -> Iterator[deadline.Scope]:
        """Have `close`, and the end of the current scope, end a wait of `poll` in the block."""
        scope = deadline.current()
        with Waker() as waker, scope.on_cancel(waker.wake):
            for source in (self._closed, waker):
                poll.register(source, select.POLLIN)
            yield scope


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == math.inf else seconds * 1000
