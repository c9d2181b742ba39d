"""Run one program with bounds on its time and its output; when a bound is hit, nothing of it is left running."""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, TypeAlias

from shim.base import deadline
from shim.base.process import ProcessHandle
from shim.base.wakeup import Waker
from shim.domain.errors import DeadlineExceeded, ResourceExhausted

STDOUT_LIMIT = 1 << 20
"""Of one program; more is a fault, not a result."""
STDERR_LIMIT = 16 << 10
"""The last ones, which are kept."""

START_SECONDS = 10.0
"""For a program to begin: its file is read, which on a dead volume takes for ever."""

_REAP_SECONDS = 5.0
_CHUNK = 1 << 16


Environment: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a program that ended by itself."""

    returncode: int
    """Exit code; negative: the signal that ended it."""
    stdout: bytes
    stderr: bytes
    """Its last `STDERR_LIMIT` bytes."""


def run_bounded(
    program: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Environment,
    stdin: bytes,
    timeout: float,
    what: str,
) -> Outcome:
    """Run `program` and wait until it ends.

    Bound by `timeout` seconds and by the current scope: DeadlineExceeded, Cancelled. ResourceExhausted when it prints
    more than `STDOUT_LIMIT`. In these cases its whole process group is killed. OSError when it cannot be started,
    DeadlineExceeded also when its file does not answer within START_SECONDS, and for such a file at once from then on.
    `what` opens each message.
    """
    scope = deadline.current()
    scope.check(what)
    with _readable(stdin) as source, Waker() as waker, scope.on_cancel(waker.wake):
        child = _STARTS.start([program, *arguments], stdin=source, environment=environment, timeout=timeout, what=what)
        try:
            with _Streams(child) as streams:
                return streams.wait_exited(waker=waker, timeout=timeout, what=what)
        except BaseException:
            _kill_group(child)
            raise


class _Starts:
    """Starts of programs, each in a thread that is left behind where the file of the program does not answer.

    The kernel reads that file in the new process, and the start returns when that is done: on a dead volume never. Of
    one program only one start is under way, so that it takes one thread however often it is tried.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[str, _Start] = {}
        """By program."""

    def start(
        self,
        command: Sequence[str | Path],
        *,
        stdin: IO[bytes],
        environment: Environment,
        timeout: float,
        what: str,
    ) -> subprocess.Popen[bytes]:
        """Start `command`, within `timeout`, START_SECONDS and the scope; DeadlineExceeded names the program.

        At once, where an earlier start of it has not returned for so long. OSError when it cannot be started.
        """
        program, began = str(command[0]), time.monotonic()
        with self._changed:
            while (earlier := self._under_way.get(program)) is not None:
                self._wait(earlier, seconds=START_SECONDS, what=what)
            start = _Start(command, stdin=os.dup(stdin.fileno()), environment=environment, began=began)
            self._under_way[program] = start
            try:
                threading.Thread(target=self._perform, args=(start,), name="start", daemon=True).start()
            except RuntimeError as error:
                del self._under_way[program]
                os.close(start.stdin)
                raise ResourceExhausted(f"{what}: no thread can be started: {error}") from error
            try:
                self._wait(start, seconds=min(timeout, START_SECONDS), what=what)
            except BaseException:
                start.abandoned = True
                raise
        if start.failure is not None:
            raise start.failure
        assert start.child is not None  # noqa: S101 - it has neither failed nor goes on
        return start.child

    def _wait(self, start: "_Start", *, seconds: float, what: str) -> None:
        """Wait until a start has ended, until `seconds` after it began; the lock is held."""
        program, left = start.program, seconds - start.seconds
        if not deadline.wait_for(self._changed, lambda: start.ended, what=f"{what}: start {program}", limit=left):
            raise DeadlineExceeded(
                f"{what}: {program} could not be started for {start.seconds:.0f} s; is the volume of its file alive?"
            )

    def _perform(self, start: "_Start") -> None:
        child, failure = None, None
        try:
            child = start.perform()
        except Exception as error:  # noqa: BLE001 - raised in the caller
            failure = error
        finally:
            os.close(start.stdin)
        with self._changed:
            start.child, start.failure, start.ended = child, failure, True
            del self._under_way[start.program]
            abandoned = start.abandoned
            self._changed.notify_all()
        if abandoned and child is not None:
            _end(child)


class _Start:
    """One start of a program."""

    def __init__(self, command: Sequence[str | Path], *, stdin: int, environment: Environment, began: float) -> None:
        """`began` is when its caller began to wait for it, by the monotonic clock."""
        self.program = str(command[0])
        self.stdin = stdin
        """A descriptor of the start's own: the caller may have closed its own by the time it returns."""
        self.ended = self.abandoned = False
        self.child: subprocess.Popen[bytes] | None = None
        self.failure: Exception | None = None
        self._command = tuple(command)
        self._environment = environment
        self._began = began

    @property
    def seconds(self) -> float:
        """Return how long it has been waited for."""
        return time.monotonic() - self._began

    def perform(self) -> subprocess.Popen[bytes]:
        """Start it. OSError."""
        return subprocess.Popen(
            self._command,
            stdin=self.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # its children are in its group, and the group is what is killed
        )


_STARTS = _Starts()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program whose caller has given up, and close its pipes."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its children. The child is not reaped yet, so its id still means this group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # A process inside an uninterruptible system call dies when that ends; subprocess reaps it at a later start.
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_SECONDS)


@contextmanager
def _readable(data: bytes) -> Iterator[IO[bytes]]:
    """Yield a file in memory that holds `data`. A write to a pipe would block on a program that never reads it."""
    with open(os.memfd_create("stdin"), "w+b") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.seek(0)
        yield file


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
        self._process = ProcessHandle(child.pid)
        self._selector = selectors.DefaultSelector()
        for source in (self._process, self._stdout, self._stderr):
            self._selector.register(source, selectors.EVENT_READ)

    def wait_exited(self, *, waker: Waker, timeout: float, what: str) -> Outcome:
        self._selector.register(waker, selectors.EVENT_READ)
        scope = deadline.current()
        expires = time.monotonic() + timeout
        while True:
            left = scope.remaining(max(0.0, expires - time.monotonic()))
            ready = [key.fileobj for key, _ in self._selector.select(left)]
            for stream in (self._stdout, self._stderr):
                if stream in ready:
                    self._read(stream, what=what)
            if self._process in ready:
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
        self._end_children_of_killed()
        return Outcome(
            returncode=self._child.wait(),  # it has ended, so this does not block
            stdout=bytes(self._kept[self._stdout]),
            stderr=bytes(self._kept[self._stderr]),
        )

    def _end_children_of_killed(self) -> None:
        """End what a program that was killed has started: it would go on beside the undo of what it was part of."""
        # Not reaped yet, so its id still means this group.
        ended = os.waitid(os.P_PIDFD, self._process.fileno(), os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

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
        self._process.close()
