"""The process of an exec: how it ended, the wait for that, and its end by force. Docker can only tell the first."""

import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import structlog

from shim import deadline
from shim.concurrency import lookout
from shim.engine.answers import ExecInspect
from shim.errors import NotFound, ResourceExhausted, ShimError, reason_of
from shim.runtime import Runtime

log = structlog.get_logger(__name__)

KILL_SECONDS = 20.0
"""Bound on ending a process that outlived its deadline or its client."""

LATE_SECONDS = 120.0
"""How long an exec is watched that had not begun when it was to end. A daemon that was stuck for longer is mostly
restarted, and has then forgotten the exec."""

LOOK_SECONDS = 2.0
"""Between two looks whether the container still runs: on Engine 20.10 the output of a command that was killed together
with its container never ends, and nothing is known of the command any more."""

EXIT_KILLED = 137
"""What newer Engines tell of a command that was killed together with its container."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.01
"""Seconds between two questions about what Docker is to learn any moment."""


def runs(rt: Runtime, container_id: str) -> bool:
    """Whether the container is there and runs."""
    try:
        return rt.view.container(container_id).life.running
    except NotFound:
        return False


def ran_last(rt: Runtime, container_id: str) -> bool:
    """Whether the container was there and ran when last heard of. Never waits, and is known while Docker is away."""
    known = rt.view.last_known(container_id)
    return known is not None and known.life.running


def inspected(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Read the state of an exec; of one that Docker forgot with the end of its container, that it was killed."""
    try:
        return rt.engine.inspect_exec(exec_id)
    except NotFound:
        if runs(rt, container_id):
            raise
        return ExecInspect(exit_code=EXIT_KILLED)


def exit_code(ended: ExecInspect, exec_id: str) -> int:
    """Give the exit code of an exec that has ended."""
    if ended.exit_code is None:
        raise ShimError(f"exec {exec_id}: Docker does not tell how it ended")
    return ended.exit_code


def wait_ended(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Wait until an exec whose output has ended has ended itself: a process may close its output and go on."""
    with _opened(rt, exec_id, container_id=container_id) as (found, handle):
        if handle is not None:
            _wait_process_ended(handle, exec_id=exec_id)
    # Docker learns of the end a little later than the kernel.
    pauses = _pauses(f"wait for the end of exec {exec_id}")
    while found.running and (found := inspected(rt, exec_id, container_id=container_id)).running:
        next(pauses)
    return found


def end_process(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect | None:
    """Kill the exec'd process with its process group, and wait until it is gone: KILL_SECONDS, whatever the scope says.

    None if it was killed. How it ended if it had ended by itself, and only what it left in the background still held
    its output open: then the command has finished in time. None also if it has not begun: Docker may have the order to
    start it and begin it later, so it is watched for LATE_SECONDS, and killed then. So is one that cannot be killed
    now, and the failure is raised: ResourceExhausted when no descriptor is free.
    """
    try:
        ended = _killed(rt, exec_id, container_id=container_id)
    except Exception:
        _watch_late(rt, exec_id, container_id=container_id)
        raise
    if ended is not None and ended.exit_code is None:
        _watch_late(rt, exec_id, container_id=container_id)
        return None
    return ended


def end_failed(rt: Runtime, exec_id: str, *, container_id: str, because: BaseException) -> None:
    """Do `end_process` for a client that gets the failure `because`; what goes wrong is noted on that, and logged."""
    try:
        end_process(rt, exec_id, container_id=container_id)
    except NotFound:  # Docker forgot it with the end of its container, of which the view has not heard yet
        return
    except Exception as error:  # noqa: BLE001 - noted on the failure that is raised
        because.add_note(f"the exec'd process could not be ended: {error}")
        log.error("cannot end the process of a lost client", exec_id=exec_id, error=error)


def _watch_late(rt: Runtime, exec_id: str, *, container_id: str) -> None:
    """Kill an exec'd process that begins after nobody wants it any more.

    By looking: Docker's event of it comes before the process has a pid, and to have these events sent would cost more
    for every probe of the node than the few looks here.
    """
    look = partial(_late_is_over, rt, exec_id, container_id=container_id)
    rt.lookout.watch(look, what=f"exec {exec_id} in container {container_id}", seconds=LATE_SECONDS)


def _late_is_over(rt: Runtime, exec_id: str, *, container_id: str) -> bool:
    """Whether an exec that was to end has ended or never can begin; its process is killed if it has one now."""
    try:
        with deadline.bound(lookout.LOOK_SECONDS):
            found = inspected(rt, exec_id, container_id=container_id)
    except NotFound:  # the Engine has been restarted
        return True
    if not found.running:
        return found.exit_code is not None or not runs(rt, container_id)
    if not found.pid:
        return False
    _killed(rt, exec_id, container_id=container_id)
    log.warning("exec'd process that began too late is ended", exec_id=exec_id)
    return True


def _killed(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect | None:
    """Kill the process of an exec and wait until it is gone; its state if there is no process, or none any more."""
    with deadline.shielded(KILL_SECONDS), _opened(rt, exec_id, container_id=container_id) as (found, handle):
        if handle is None:
            # Docker may be seconds late to note an end; what it has not told in time has not ended in time.
            return None if found.running else found
        _kill(handle, pid=found.pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(KILL_SECONDS * 1000):
            log.error("exec'd process does not end although it was killed", exec_id=exec_id)
    return None


def _kill(handle: int, *, pid: int) -> None:
    """Kill a process, and its group if it leads one: what it runs would go on without anybody to read it."""
    with suppress(ProcessLookupError):
        # Stopped, it cannot end by itself and leave its number to another group.
        signal.pidfd_send_signal(handle, signal.SIGSTOP)
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        signal.pidfd_send_signal(handle, signal.SIGKILL)


@contextmanager
def _opened(rt: Runtime, exec_id: str, *, container_id: str) -> Iterator[tuple[ExecInspect, int | None]]:
    """Give the state of an exec and a pidfd of its process, None once it has ended."""
    found = _wait_begun(rt, exec_id, container_id=container_id)
    if not found.running:
        yield found, None
        return
    try:
        handle = os.pidfd_open(found.pid)
    except ProcessLookupError:
        yield inspected(rt, exec_id, container_id=container_id), None
        return
    except OSError as error:  # no descriptor is free
        raise ResourceExhausted(f"open the process of exec {exec_id}: {reason_of(error)}") from error
    try:
        # The pid could have been reused before the handle was opened; the Engine's word after it tells.
        found = inspected(rt, exec_id, container_id=container_id)
        yield found, handle if found.running else None
    finally:
        os.close(handle)


def _wait_begun(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Docker says that an exec runs a little before its process has a pid, and has no event for the latter."""
    pauses = _pauses(f"wait for the process of exec {exec_id}")
    while (found := inspected(rt, exec_id, container_id=container_id)).running and not found.pid:
        next(pauses)
    return found


def _pauses(what: str) -> Iterator[None]:
    """Pause at each step, twice as long as before; Cancelled or DeadlineExceeded once `what` must not go on."""
    seconds, never = _FIRST_PAUSE, threading.Event()
    while True:
        deadline.current().check(what)
        never.wait(seconds)
        yield
        seconds = min(2 * seconds, _LONGEST_PAUSE)


def _wait_process_ended(handle: int, *, exec_id: str) -> None:
    scope = deadline.current()
    try:
        wakes, waker = socket.socketpair()
    except OSError as error:  # no descriptor is free
        raise ResourceExhausted(f"wait for the end of exec {exec_id}: {reason_of(error)}") from error
    with wakes, waker:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(wakes, select.POLLIN)
        with scope.on_cancel(lambda: _wake(waker)):
            left = scope.remaining()
            poll.poll(None if left is None else left * 1000)
    scope.check(f"wait for the end of exec {exec_id}")


def _wake(waker: socket.socket) -> None:
    with suppress(OSError):  # called a moment too late: closed already
        waker.send(b"x")
