"""Run one program with bounds on its time and its output; when a bound is hit, nothing of it is left running.

And start a module of the server's own as a process beside it.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, ResourceExhausted

STDOUT_LIMIT = 1 << 20
"""Most bytes a program may print; more is a fault, not a result."""
STDERR_LIMIT = 16 << 10
"""How many of the last bytes of stderr are kept."""

SERVER_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What systemd and terminals send to the server and all it started. Its own processes end with it, not before it."""

_REAP_SECONDS = 5.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a program that ended by itself."""

    returncode: int
    """Exit code; negative: the signal that ended it."""
    stdout: bytes
    stderr: bytes
    """Its last `STDERR_LIMIT` bytes."""


def run_bounded(
    program: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str],
    stdin: bytes,
    timeout: float,
    what: str,
) -> Outcome:
    """Run `program` and wait until it ends.

    Bound by `timeout` seconds and by the current scope: DeadlineExceeded, Cancelled. ResourceExhausted when it prints
    more than `STDOUT_LIMIT`. In these cases its whole process group is killed. OSError when it cannot be started.
    `what` opens each message.
    """
    scope = deadline.current()
    scope.check(what)
    with _readable(stdin) as source, _Waker() as waker, scope.on_cancel(waker.wake):
        child = subprocess.Popen(
            [program, *arguments],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # its children are in its group, and the group is what is killed
        )
        try:
            with _Streams(child) as streams:
                return streams.wait_exited(waker=waker, timeout=timeout, what=what)
        except BaseException:
            _kill_group(child)
            raise


def start_module(module: str, *arguments: str, pass_fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a module of the server's own as a process, with these descriptors open; SERVER_SIGNALS do not end it.

    OSError when it cannot be started.
    """
    # Inherited, and so in force before the process could ask for it; other threads of the server keep theirs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)
    try:
        return subprocess.Popen(
            # -P, and the server's own path: no directory that the server takes nothing from lends it modules.
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reap(child: subprocess.Popen[bytes], *, seconds: float) -> None:
    """Wait until a process that was asked to end has ended; kill it after `seconds`, and wait as long once more.

    A process that hangs in the kernel cannot be killed: it has no `returncode` afterwards.
    """
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its children. The child is not reaped yet, so its id still means this group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # A process inside an uninterruptible system call dies when that ends; subprocess reaps it at a later start.
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_SECONDS)


@contextmanager
def _readable(data: bytes) -> Iterator[IO[bytes]]:
    """Give `data` as a file in memory. A pipe would have to be fed, and block on a program that never reads it."""
    with open(os.memfd_create("stdin"), "w+b") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.seek(0)
        yield file


class _Waker:
    """A descriptor that becomes readable when the client goes away."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        # The scope may call after its block was left; by then the number may belong to another file.
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open = False
            os.close(self.fd)


class _Streams:
    """The output of one running child, read until the child itself has ended.

    Its end is taken from a pidfd, not from the end of its output: a daemon that a program leaves behind may hold the
    pipes open for ever.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None  # noqa: S101 - both were asked for as pipes
        assert child.stderr is not None  # noqa: S101
        self._child = child
        self._stdout, self._stderr = child.stdout, child.stderr
        self._kept = {self._stdout: bytearray(), self._stderr: bytearray()}
        self._pidfd = os.pidfd_open(child.pid)
        self._selector = selectors.DefaultSelector()
        for source in (self._pidfd, self._stdout, self._stderr):
            self._selector.register(source, selectors.EVENT_READ)

    def wait_exited(self, *, waker: _Waker, timeout: float, what: str) -> Outcome:
        self._selector.register(waker.fd, selectors.EVENT_READ)
        scope = deadline.current()
        expires = time.monotonic() + timeout
        while True:
            left = scope.remaining(max(0.0, expires - time.monotonic()))
            ready = [key.fileobj for key, _ in self._selector.select(left)]
            for stream in (self._stdout, self._stderr):
                if stream in ready:
                    self._read(stream, what=what)
            if self._pidfd in ready:
                return self._outcome(what=what)
            scope.check(what)
            if time.monotonic() >= expires:
                raise DeadlineExceeded(f"{what}: not finished within {timeout:g} s, killed")

    def _read(self, stream: IO[bytes], *, what: str) -> None:
        chunk = os.read(stream.fileno(), _CHUNK)
        if not chunk:
            self._selector.unregister(stream)
        kept = self._kept[stream]
        kept += chunk
        if stream is self._stderr:
            del kept[:-STDERR_LIMIT]
        elif len(kept) > STDOUT_LIMIT:
            raise ResourceExhausted(f"{what}: printed more than {STDOUT_LIMIT} bytes, killed")

    def _outcome(self, *, what: str) -> Outcome:
        for stream in (self._stdout, self._stderr):
            if stream in self._selector.get_map():
                self._drain(stream, what=what)
        return Outcome(
            returncode=self._child.wait(),  # it has ended, so this does not block
            stdout=bytes(self._kept[self._stdout]),
            stderr=bytes(self._kept[self._stderr]),
        )

    def _drain(self, stream: IO[bytes], *, what: str) -> None:
        """Read what the dead child left in the pipe: a pipe's capacity at most, though others may go on writing."""
        os.set_blocking(stream.fileno(), False)
        for _ in range(STDOUT_LIMIT // _CHUNK):
            try:
                self._read(stream, what=what)
            except BlockingIOError:
                return
            if stream not in self._selector.get_map():
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._stdout.close()
        self._stderr.close()
        os.close(self._pidfd)
