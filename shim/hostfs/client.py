"""Calls functions in the helper process, with a timeout even if their host path hangs.

A `stat` on a dead NFS or FUSE volume does not return, and its thread cannot be killed. In the server, each retry by the
kubelet would cost another thread. The server's process could not be killed either: it would keep its locks and sockets,
so no other server could start. So such calls run in a separate process, which loses a thread per hanging path. Callers
get an error that names the path, and later callers get it at once.

Strategy: a call is sent as a packet and waits for its answer. Per path only one call is in flight. A caller that finds
another call in flight waits for it, unless the call has been hanging for ANSWER_SECONDS. A call whose caller has left
stays registered until its answer comes or the helper process dies. Per volume at most VOLUME_CALLS are in flight, so
that a dead volume with many paths takes few threads. Waiting callers ping the process, and replace it if it is stuck.
"""

import itertools
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import structlog

from shim.base import deadline
from shim.base.child_process import ChildProcess
from shim.base.heartbeat import Heartbeat
from shim.domain.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted, ShimError, Unavailable, reason_of
from shim.hostfs.packets import MAX_PACKET, PING, content_of, number_of, packed
from shim.hostfs.volumes import ROOT, Volumes

ANSWER_SECONDS = 10.0
"""Seconds after which a path counts as dead. A disk that spins up or a server that fails over answers sooner."""
MAX_CALLS = 256
"""Maximum calls in flight, each a thread of the helper process. If it is reached, nearly all calls hang."""
VOLUME_CALLS = 8
"""Maximum calls in flight per volume; further calls wait. The root file system is exempt, because links there may lead
anywhere."""
_TRIES = 2
"""Attempts of a call if the helper process dies."""
_STOP_SECONDS = 0.5
"""Seconds for the process to end after its socket is closed, and again after it is killed."""

T = TypeVar("T")
Answer = tuple[Any, Exception | None]
"""Result and exception of a call."""

log = structlog.get_logger(__name__)


class HostCall(Protocol):
    """Calls a function that may hang on `path`. `HostFs.call` does so in the helper process."""

    def __call__(self, function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        """Return the function's result, or raise its exception."""
        ...


def call_here(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:  # noqa: ARG001 - a HostCall
    """Call a function in this process, whose thread may hang."""
    return function(*arguments)


class _ProcessLost(Exception):
    """The helper process died before it answered."""


@dataclass(slots=True, eq=False)
class _Pending:
    """An unanswered call."""

    path: str
    may_take_long: bool
    """Whether a late answer is normal, so that the call does not count for its volume."""
    volume: str = ""
    """Its mount point; empty until needed."""
    began: float = field(default_factory=time.monotonic)
    answer: Answer | None = None
    lost: bool = False
    """Whether the helper process died."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class HostFs:
    """The helper process, started on the first call and restarted if it dies. Thread-safe."""

    def __init__(self, *, modules: Sequence[str] = ()) -> None:
        """`modules` contain further functions to call; the helper process imports them at its start."""
        self._modules = tuple(modules)
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._paths: dict[str, _Pending] = {}
        self._process: ChildProcess | None = None
        self._reader: threading.Thread | None = None
        self._heartbeat = Heartbeat()
        self._volumes = Volumes()
        self._stopped = False

    @property
    def pid(self) -> int:
        """The pid of the helper process; 0 if it does not run."""
        process = self._process
        return process.pid if process else 0

    def start(self) -> None:
        """Start the helper process, so that the first call does not wait for it."""
        with self._changed:
            try:
                self._ensure_process()
            except Unavailable as error:
                log.warning("failed to start helper process", error=error)

    def stop(self) -> None:
        """Stop the helper process; all calls raise Unavailable. A hanging process is abandoned."""
        with self._changed:
            self._stopped = True
            if self._process is not None:
                self._process.socket.shutdown(socket.SHUT_RDWR)
            reader = self._reader
        if reader is not None:
            reader.join(3 * _STOP_SECONDS)
        self._volumes.close()

    def call(
        self, function: Callable[..., T], *arguments: Any, path: str, what: str, seconds: float = ANSWER_SECONDS
    ) -> T:
        """Call `function(*arguments)` in the helper process; return its result, or raise its exception.

        The function and its arguments must be picklable, and it may be called twice. `path` is the path that the call
        may block on, and `what` begins error messages. Raise DeadlineExceeded if the call does not return within
        `seconds`, if an earlier call on `path` has been blocked that long, or if VOLUME_CALLS calls on its volume are
        blocked. Raise ResourceExhausted if too many paths hang, Unavailable if there is no helper process.
        """
        for _ in range(_TRIES):
            try:
                answer = self._call_once(function, arguments, path=path, what=what, seconds=seconds)
            except _ProcessLost:
                continue
            result, failure = answer
            if failure is not None:
                raise failure
            return cast("T", result)
        raise Unavailable(f"{what}: the helper process for host paths died")

    def call_until_answered(self, function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        """Like `call`, but without a timeout: only the end of the current scope ends the wait."""
        return self.call(function, *arguments, path=path, what=what, seconds=math.inf)

    def _call_once(
        self, function: Callable[..., T], arguments: tuple[Any, ...], *, path: str, what: str, seconds: float
    ) -> Answer:
        pending = _Pending(path, may_take_long=seconds > ANSWER_SECONDS)
        with deadline.current().on_cancel(self._notify), self._changed:
            self._wait_free(pending, what=what, seconds=seconds)
            self._send(function, arguments, pending=pending, what=what)
            return self._wait_answer(pending, what=what, seconds=seconds)

    # The following methods are called with the lock held.

    def _wait_free(self, call: _Pending, *, what: str, seconds: float) -> None:
        while (earlier := self._paths.get(call.path) or self._holder(call)) is not None:
            if earlier.path != call.path and earlier.seconds >= seconds:
                raise DeadlineExceeded(
                    f"{what}: {call.path} is on {earlier.volume}, where {VOLUME_CALLS} paths have not answered, "
                    f"{earlier.path} for {earlier.seconds:.0f} s; is that volume alive?"
                )
            self._wait(earlier, what=what, seconds=seconds)

    def _holder(self, call: _Pending) -> _Pending | None:
        """Return the youngest call on this call's volume if the volume has VOLUME_CALLS in flight, else None.

        Mount points change with each pod, and reading them takes a millisecond on a full node. So they are read only
        when at least VOLUME_CALLS are in flight.
        """
        if len(self._pending) < VOLUME_CALLS or (volume := self._volume_of(call)) == ROOT:
            return None
        held = [pending for pending in self._pending.values() if self._volume_of(pending) == volume]
        return held[-1] if len(held) >= VOLUME_CALLS else None

    def _volume_of(self, call: _Pending) -> str:
        """Return the mount point that a call counts for: for a call that may take long ROOT, which has no limit."""
        if not call.volume:
            call.volume = ROOT if call.may_take_long else self._volumes.of_path(call.path)
        return call.volume

    def _wait_answer(self, pending: _Pending, *, what: str, seconds: float) -> Answer:
        while pending.answer is None:
            if pending.lost:
                raise _ProcessLost
            self._wait(pending, what=what, seconds=seconds)
        return pending.answer

    def _wait(self, pending: _Pending, *, what: str, seconds: float) -> None:
        """Wait until something changes; raise DeadlineExceeded if `pending` has been in flight for `seconds`."""
        scope = deadline.current()
        scope.check(f"{what}: wait for {pending.path}")
        left = seconds - pending.seconds
        if left <= 0:
            raise DeadlineExceeded(
                f"{what}: {pending.path} has not answered for {pending.seconds:.0f} s; is the volume behind it alive?"
            )
        self._check_alive()
        self._changed.wait(scope.remaining(min(left, max(self._heartbeat.seconds_left(), 0.0), deadline.LONGEST)))

    def _check_alive(self) -> None:
        """Ping the process if due; kill a process that does not answer, so that the next call starts another."""
        process = self._process
        if process is None:
            return
        if self._heartbeat.is_lost:
            log.error("killing helper process: no answer", pid=process.pid)
            process.kill()
            # A thread that hangs in the kernel keeps the process's end of the socket open.
            with suppress(OSError):
                process.socket.shutdown(socket.SHUT_RDWR)
            self._wait_lost(process)
        elif self._heartbeat.is_ping_due:
            self._heartbeat.note_ping()
            with suppress(OSError):  # the socket is full because the process is stuck, which the heartbeat detects
                process.socket.send(PING, socket.MSG_DONTWAIT)

    def _send(self, function: Callable[..., T], arguments: tuple[Any, ...], *, pending: _Pending, what: str) -> None:
        self._check_alive()
        if len(self._pending) >= MAX_CALLS:
            hanging = max(self._pending.values(), key=lambda pending: pending.seconds)
            raise ResourceExhausted(
                f"{what}: {MAX_CALLS} host paths do not answer, {hanging.path} for {hanging.seconds:.0f} s"
            )
        number = next(self._numbers)
        try:
            packet = packed(number, (function, arguments))
        except ValueError as error:
            raise InvalidArgument(f"{what}: {error}") from error
        process = self._ensure_process()
        try:
            process.socket.send(packet, socket.MSG_DONTWAIT)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._wait_lost(process)
            raise _ProcessLost from error
        except OSError as error:
            raise Unavailable(f"{what}: the helper process for host paths: {reason_of(error)}") from error
        pending.began = time.monotonic()  # excludes the wait for earlier calls
        self._pending[number] = self._paths[pending.path] = pending

    def _wait_lost(self, process: ChildProcess) -> None:
        """Wait until the reader notices that the process has died, because only then another process can be started."""
        give_up = time.monotonic() + _STOP_SECONDS
        while self._process is process and (left := give_up - time.monotonic()) > 0:
            self._changed.wait(left)

    def _ensure_process(self) -> ChildProcess:
        if self._stopped:
            raise Unavailable("the server is stopping")
        if self._process is None:
            try:
                process = ChildProcess("shim.hostfs.worker", *self._modules)
                self._reader = self._start_reader(process)
            except (OSError, RuntimeError) as error:
                raise Unavailable(f"start the helper process for host paths: {error}") from error
            self._process = process
            self._heartbeat = self._heartbeat.of_next()
        return self._process

    def _start_reader(self, process: ChildProcess) -> threading.Thread:
        reader = threading.Thread(target=self._read, args=(process,), name="hostfs", daemon=True)
        try:
            reader.start()
        except RuntimeError:  # no thread could be started
            process.socket.close()
            raise
        return reader

    # The following methods are called without the lock.

    def _read(self, process: ChildProcess) -> None:
        """Deliver answers until the process ends."""
        try:
            while packet := process.socket.recv(MAX_PACKET):
                self._take(packet)
        except ConnectionResetError:
            pass  # it ended before it had read all packets
        finally:
            self._lose(process)

    def _take(self, packet: bytes) -> None:
        number = number_of(packet)
        answer = _answer_of(packet) if number else None
        with self._changed:
            self._heartbeat.note_answer()
            if not number:
                return
            pending = self._pending.pop(number)
            pending.answer = answer
            del self._paths[pending.path]
            self._changed.notify_all()

    def _lose(self, process: ChildProcess) -> None:
        with self._changed:
            self._process = None
            for pending in self._pending.values():
                pending.lost = True
            self._pending.clear()
            self._paths.clear()
            self._changed.notify_all()
            process.socket.close()
            if not self._stopped:
                log.warning("helper process ended", pid=process.pid)
        # A process that hangs on a dead volume cannot be killed, but it holds nothing that another server needs.
        process.reap(seconds=_STOP_SECONDS)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _answer_of(packet: bytes) -> Answer:
    try:
        return cast("Answer", content_of(packet))
    except Exception as error:  # noqa: BLE001 - unpickling raises anything; only this call fails
        reason = f"{type(error).__name__}: {error}"
        return None, ShimError(f"the answer of the helper process for host paths cannot be read: {reason}")
