"""Calls of the helper process, bounded in time whatever the host path behind them does.

A `stat` on a dead NFS or FUSE volume does not return, and the thread in it cannot be ended. Were it one of the
server's, each repetition by the kubelet would cost a thread, and the process could not even be killed: it would keep
its locks and sockets, and no other server could start. So such calls are made in a process of their own. It loses one
thread for each path that hangs; callers get an error that names the path, and those that come later get it at once.

Strategy: a call is sent as one packet and waits for its answer. For each path at most one call is under way. A caller
that finds another one waits for its end, unless it has hung for ANSWER_SECONDS already. A call whose caller has left
stays registered until its answer comes or the helper process dies. On one volume only VOLUME_CALLS are under way, so
that a dead one with many paths takes few threads. Callers who wait ping the process, and replace one that is stuck.
"""

import itertools
import math
import socket
import threading
import time
from collections.abc import Callable
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
"""After which a path counts as dead. Disks that spin up, and servers that fail over, answer sooner."""
MAX_CALLS = 256
"""Calls under way, each a thread of the helper process; nearly all of them hang when there are so many."""
VOLUME_CALLS = 8
"""Calls under way on one volume other than the root file system, where links may lead anywhere. Further ones wait."""
_TRIES = 2
"""For a call whose process died under it."""
_STOP_SECONDS = 0.5
"""For the process to end once its socket was closed, and once it was killed."""

T = TypeVar("T")
Answer = tuple[Any, Exception | None]
"""Result and failure."""

log = structlog.get_logger(__name__)


class HostCall(Protocol):
    """Calls a function that may hang on `path`, as `HostFs.call` does in the helper process."""

    def __call__(self, function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        """Return what the function returns, or raise what it raises."""
        ...


def call_here(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:  # noqa: ARG001 - a HostCall
    """Call a function in this process, with which it may hang: for a process that may."""
    return function(*arguments)


class _ProcessLost(Exception):
    """The helper process died before it answered."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A call that has not been answered."""

    path: str
    may_take_long: bool
    """That it has not been answered is no sign of a dead volume."""
    volume: str = ""
    """Its mount point, once that was needed."""
    began: float = field(default_factory=time.monotonic)
    answer: Answer | None = None
    lost: bool = False
    """The process that was to answer has died."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class HostFs:
    """The helper process, started with the first call and again when it has died. Thread-safe."""

    def __init__(self) -> None:
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
        """Return the process id of the helper, 0 while there is none."""
        process = self._process
        return process.pid if process else 0

    def start(self) -> None:
        """Start the helper process now, so that the first call need not wait for it."""
        with self._changed:
            try:
                self._ensure_process()
            except Unavailable as error:
                log.warning("failed to start helper process", error=error)

    def stop(self) -> None:
        """End the helper process, and all calls with Unavailable. A process that hangs is left behind."""
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
        """Return what `function` returns, or raise what it raises; called in the helper process with `arguments`.

        A function of a module, and arguments, that can be pickled; it may be called twice. `path` is what it may hang
        on: DeadlineExceeded when that does not answer within `seconds`, or has not answered an earlier call so long,
        nor have VOLUME_CALLS on other paths of its volume.
        ResourceExhausted when too many paths hang, Unavailable when there is no helper process. `what` opens messages.
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
        """Call as `call` does, for as long as the path hangs: the wait ends with the current scope."""
        return self.call(function, *arguments, path=path, what=what, seconds=math.inf)

    def _call_once(
        self, function: Callable[..., T], arguments: tuple[Any, ...], *, path: str, what: str, seconds: float
    ) -> Answer:
        pending = _Pending(path, may_take_long=seconds > ANSWER_SECONDS)
        with deadline.current().on_cancel(self._notify), self._changed:
            self._wait_free(pending, what=what, seconds=seconds)
            self._send(function, arguments, pending=pending, what=what)
            return self._wait_answer(pending, what=what, seconds=seconds)

    # All of these are called with the lock held.

    def _wait_free(self, call: _Pending, *, what: str, seconds: float) -> None:
        while (earlier := self._paths.get(call.path) or self._holder(call)) is not None:
            if earlier.path != call.path and earlier.seconds >= seconds:
                raise DeadlineExceeded(
                    f"{what}: {call.path} is on {earlier.volume}, where {VOLUME_CALLS} paths have not answered, "
                    f"{earlier.path} for {earlier.seconds:.0f} s; is that volume alive?"
                )
            self._wait(earlier, what=what, seconds=seconds)

    def _holder(self, call: _Pending) -> _Pending | None:
        """Return the youngest call on the volume of this one, if that has all the calls it may have, else None.

        Mount points change with each pod, and to read those of a full node takes a millisecond. So they are read only
        where so many calls are under way.
        """
        if len(self._pending) < VOLUME_CALLS or (volume := self._volume_of(call)) == ROOT:
            return None
        held = [pending for pending in self._pending.values() if self._volume_of(pending) == volume]
        return held[-1] if len(held) >= VOLUME_CALLS else None

    def _volume_of(self, call: _Pending) -> str:
        """Return the mount point that a call counts for: ROOT, which has no bound, for one that may take long."""
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
        """Wait until something changes; DeadlineExceeded when `pending` has hung for `seconds`."""
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
        """Ping the process if that is due; kill one that has not answered, for the next call to start another."""
        process = self._process
        if process is None:
            return
        if self._heartbeat.is_lost:
            log.error("killing helper process: no answer", pid=process.pid)
            process.kill()
            # A thread of it that hangs in the kernel keeps its end of the socket open.
            with suppress(OSError):
                process.socket.shutdown(socket.SHUT_RDWR)
            self._wait_lost(process)
        elif self._heartbeat.is_ping_due:
            self._heartbeat.note_ping()
            with suppress(OSError):  # one that reads nothing has no room for it, and is lost soon
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
        pending.began = time.monotonic()  # not while it waited for earlier ones
        self._pending[number] = self._paths[pending.path] = pending

    def _wait_lost(self, process: ChildProcess) -> None:
        """Wait for the reader to see that the process has died: until then there is no other one."""
        give_up = time.monotonic() + _STOP_SECONDS
        while self._process is process and (left := give_up - time.monotonic()) > 0:
            self._changed.wait(left)

    def _ensure_process(self) -> ChildProcess:
        if self._stopped:
            raise Unavailable("the server is stopping")
        if self._process is None:
            try:
                process = ChildProcess("shim.hostfs.worker")
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
        except RuntimeError:  # no thread is available
            process.socket.close()
            raise
        return reader

    # The rest runs without it.

    def _read(self, process: ChildProcess) -> None:
        """Deliver answers until the process ends."""
        try:
            while packet := process.socket.recv(MAX_PACKET):
                self._take(packet)
        except ConnectionResetError:
            pass  # it ended before it had read all that was sent
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
        # One that hangs in a dead volume cannot be killed. It holds nothing that another server needs.
        process.reap(seconds=_STOP_SECONDS)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _answer_of(packet: bytes) -> Answer:
    try:
        return cast("Answer", content_of(packet))
    except Exception as error:  # noqa: BLE001 - unpickling raises anything; the call fails, and no other one
        reason = f"{type(error).__name__}: {error}"
        return None, ShimError(f"the answer of the helper process for host paths cannot be read: {reason}")
