"""The streams of a command of the exec program: its pipes or its terminal."""

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
"""How long output is read after the end of a command, whose background processes may keep the pipes open. Docker has
the same limit."""

_READ_BYTES = 64 << 10
"""The capacity of a pipe."""


class Streams:
    """The server's ends of a command's pipes or terminal.

    One thread may read while another writes. Any thread may call `close`.
    """

    def __init__(self, *, stdin: bool, tty: bool) -> None:
        """Create the pipes. Raise OSError if no descriptor is free."""
        self._ours: dict[int, int] = {}
        """The descriptors to read, by STDOUT and STDERR."""
        self._stdin = -1
        self._theirs: list[int] = []
        self._tty = tty
        self._closed = Waker()
        self._is_closed = False
        self._running: Running | None = None
        self._drained_at = math.inf
        """Monotonic time at which reading stops, set at the end of the command."""
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
            # A process at the other end may open the pipe for reading too, and take the data that a poll has reported.
            os.set_blocking(self._ours[number], False)

    @property
    def theirs(self) -> list[int]:
        """The command's ends of stdin, stdout and stderr."""
        return self._theirs

    def begin(self, running: Running, *, what: str) -> None:
        """Close the command's ends once the command has begun, and take its terminal. `what` names it in messages."""
        self._close_theirs()
        self._running = running
        self._what = what
        if self._tty:
            self._ours[STDOUT] = self._stdin = terminal = running.take_terminal()
            os.set_blocking(terminal, False)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (STDOUT or STDERR, bytes) until the command has closed both, or DRAIN_SECONDS after its end.

        The end of the current scope ends only this iterator; a new iterator continues at the same position.
        """
        while self._ours and (ready := self._wait_readable()):
            for number in ready:
                piece = self._read(number)
                if piece:
                    yield number, piece
                elif piece is not None:
                    self._close_ours(number)

    def output(self, *, most: int) -> dict[int, bytes]:
        """Read the output to its end. Return the first `most` bytes of STDOUT and of STDERR, and drop the rest."""
        kept = {STDOUT: bytearray(), STDERR: bytearray()}
        for number, piece in self.frames():
            kept[number] += piece[: most - len(kept[number])]
        return {number: bytes(content) for number, content in kept.items()}

    def read(self) -> bytes:
        """Wait for output of a command with a terminal; return no bytes at its end."""
        return next((piece for _, piece in self.frames()), b"")

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` to the command's input; wait while it is full. Raise ShimError if the input is closed."""
        rest = memoryview(data)
        while rest and not self._is_closed:
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                self._wait_writable()
            except OSError as error:
                raise ShimError(f"{self._what}: the command does not read its input any more") from error

    def close_stdin(self) -> None:
        """Close the command's input, unless it is a terminal. Output continues."""
        if not self._tty and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def resize(self, *, width: int, height: int) -> None:
        """Set the size of the command's terminal, in characters."""
        if self._tty and not self._is_closed:
            with suppress(OSError):  # the command has ended
                fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close(self) -> None:
        """End all reads and writes, including blocked calls. Idempotent; any thread may call it."""
        self._is_closed = True
        self._closed.wake()

    def release(self) -> None:
        """Close all descriptors. No thread may still use them."""
        self._close_theirs()
        if self._stdin >= 0:  # with a terminal, this is its descriptor
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
        if not self._tty:  # other threads may write to a terminal, or resize it, until `release`
            os.close(descriptor)

    def _read(self, number: int) -> bytes | None:
        """Return available output; b"" at the end, None if no output is available now."""
        try:
            return os.read(self._ours[number], _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:  # no process has the terminal open
                return b""
            raise

    def _wait_readable(self) -> list[int]:
        """Wait for output; return the streams with output or at their end. Return [] once closed or drained."""
        assert self._running is not None  # noqa: S101 - `begin` comes first
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
        """In the block, `close` and the end of the current scope end each wait of `poll`."""
        scope = deadline.current()
        with Waker() as waker, scope.on_cancel(waker.wake):
            for source in (self._closed, waker):
                poll.register(source, select.POLLIN)
            yield scope


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == math.inf else seconds * 1000
