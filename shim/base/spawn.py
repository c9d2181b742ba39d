"""Runs a program with bounds on its time and output, and kills its whole process group when it exceeds a bound."""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self, TypeAlias

from shim.base import deadline
from shim.base.process import ProcessHandle
from shim.base.thread_pool import run_into
from shim.base.wakeup import Waker
from shim.domain.errors import DeadlineExceeded, ResourceExhausted

STDOUT_LIMIT = 1 << 20
"""Bytes; a program that prints more is killed."""
STDERR_LIMIT = 16 << 10
"""Bytes; the end of the error output, which is kept."""

START_SECONDS = 10.0
"""Time for a program to start. The kernel reads its file, which on a dead volume blocks forever."""

_REAP_SECONDS = 5.0
_CHUNK = 1 << 16


Environment: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a program that ended within its bounds."""

    returncode: int
    """Exit code; negative for the signal that ended the program."""
    stdout: bytes
    stderr: bytes
    """The last STDERR_LIMIT bytes."""


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

    Raise DeadlineExceeded after `timeout` seconds, DeadlineExceeded or Cancelled when the current scope ends, and
    ResourceExhausted if the program prints more than STDOUT_LIMIT bytes; each time its process group is killed. Raise
    OSError if the program cannot be started, and DeadlineExceeded if the start blocks for START_SECONDS; while that
    start is blocked, later calls for the same program fail at once. Each message begins with `what`.
    """
    scope = deadline.current()
    scope.check(what)
    with _readable(stdin) as source, Waker() as waker, scope.on_cancel(waker.wake):
        child = _STARTS.start([program, *arguments], stdin=source, environment=environment, timeout=timeout, what=what)
        try:
            with ProcessHandle(child.pid) as process, _Streams(child, process) as streams:
                return streams.wait_exited(waker=waker, timeout=timeout, what=what)
        except BaseException:
            _end(child)
            raise


class _Starts:
    """Starts programs in threads, which it abandons if the start blocks.

    A start returns when the kernel has read the program's file, on a dead volume never. There is at most one start of
    a program at a time, so a blocked start occupies one thread, however often callers retry.
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
        """Start `command` within `timeout`, START_SECONDS and the current scope. Raise OSError, ShimError.

        Raise DeadlineExceeded at once if an earlier start of the program has been blocked for START_SECONDS.
        """
        program = str(command[0])
        with self._changed:
            while (earlier := self._under_way.get(program)) is not None:
                self._wait(earlier, seconds=START_SECONDS, what=what)
            start = _Start(program)  # its time begins now: many callers in a row are no blocked start
            # A duplicate, since the caller may close its descriptor before the start returns.
            launch = partial(_launch, command, stdin=os.dup(stdin.fileno()), environment=environment)
            try:
                # Not a pooled thread: the program inherits the namespaces of the thread, which are the caller's.
                threading.Thread(target=self._perform, args=(start, launch), name="start", daemon=True).start()
            except RuntimeError as error:
                os.close(launch.keywords["stdin"])
                raise ResourceExhausted(f"{what}: no thread can be started: {error}") from error
            self._under_way[program] = start
            try:
                self._wait(start, seconds=min(timeout, START_SECONDS), what=what)
            except BaseException:
                start.abandoned = True
                raise
        return start.child.result()

    def _wait(self, start: "_Start", *, seconds: float, what: str) -> None:
        """Wait until a start has ended, at most until `seconds` after it began. The lock is held."""
        program, left = start.program, seconds - start.seconds

        def ended() -> bool:
            # `child` is done earlier, but not noted: a caller that looked at it would hold the lock of that note.
            return self._under_way.get(program) is not start

        if not deadline.wait_for(self._changed, ended, what=f"{what}: start {program}", limit=left):
            raise DeadlineExceeded(
                f"{what}: {program} could not be started for {start.seconds:.0f} s; is the volume of its file alive?"
            )

    def _perform(self, start: "_Start", launch: Callable[[], subprocess.Popen[bytes]]) -> None:
        run_into(start.child, launch)
        with self._changed:
            del self._under_way[start.program]
            abandoned = start.abandoned
            self._changed.notify_all()
        if abandoned and start.child.exception() is None:
            _end(start.child.result())


@dataclass(slots=True, eq=False)
class _Start:
    """A start of a program."""

    program: str
    began: float = field(default_factory=time.monotonic)
    child: "Future[subprocess.Popen[bytes]]" = field(default_factory=Future)
    abandoned: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


_STARTS = _Starts()


def _launch(command: Sequence[str | Path], *, stdin: int, environment: Environment) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that killing its process group kills its children too
        )
    finally:
        os.close(stdin)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a program whose caller has given up, and close its pipes."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and its children. The child is not reaped yet, so no other group can have its id."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # A process in an uninterruptible system call dies when the call returns; subprocess reaps it at a later start.
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_SECONDS)


@contextmanager
def _readable(data: bytes) -> Iterator[IO[bytes]]:
    """Yield a memory file with `data`. A write to a pipe would block if the program never reads it."""
    with open(os.memfd_create("stdin"), "w+b") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(data)
        file.seek(0)
        yield file


class _Streams:
    """Reads the output of a child until the child has ended.

    A pidfd shows the end of the child, not the end of its output: a daemon that the child has started may keep the
    pipes open forever.
    """

    def __init__(self, child: subprocess.Popen[bytes], process: ProcessHandle) -> None:
        """`process` is the handle of the child."""
        assert child.stdout is not None  # noqa: S101 - both are pipes
        assert child.stderr is not None  # noqa: S101
        self._child = child
        self._stdout, self._stderr = child.stdout, child.stderr
        self._kept = {self._stdout: bytearray(), self._stderr: bytearray()}
        self._process = process
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
            returncode=self._child.wait(),  # does not block: the child has ended
            stdout=bytes(self._kept[self._stdout]),
            stderr=bytes(self._kept[self._stderr]),
        )

    def _end_children_of_killed(self) -> None:
        """Kill the children of a program that was killed: they would go on while the caller undoes its work."""
        # The child is not reaped yet, so no other group can have its id.
        ended = os.waitid(os.P_PIDFD, self._process.fileno(), os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _drain(self, stream: IO[bytes], *, what: str) -> None:
        """Read the rest of the pipe, at most STDOUT_LIMIT bytes: a daemon may go on writing to it."""
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
