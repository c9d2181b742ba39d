"""The process of an exec: how it ended, the wait for that, and killing it. Docker knows only the first."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import structlog

from shim.base import deadline, deferred_checks
from shim.base.process import ProcessHandle, open_process, wait_all_ended
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError
from shim.engine.answers import ExecInspect
from shim.runtime import Runtime
from shim.view.processes import is_in_container

log = structlog.get_logger(__name__)

KILL_SECONDS = 1.0
"""How much later than its deadline an exec may be answered for its process to be gone by then. Where Docker answers,
that takes milliseconds; what takes longer is done by deferred checks."""

LATE_SECONDS = 120.0
"""How long an exec that could not be ended is checked, counted while Docker answers. A daemon that was stuck for longer
is mostly restarted, and has then forgotten the exec."""

LATE_KILL_SECONDS = 0.1
"""How long a deferred check waits for a process that it has killed. The next one checks whether it is gone."""

REPORT_SECONDS = 20.0
"""How long Docker is given to report what must have happened: that a process whose output has ended has begun, and that
one that the kernel shows as gone has ended. It learns of both from containerd, and the event can be lost for good."""

RUNNING_CHECK_SECONDS = 2.0
"""Between two checks whether the container still runs: on Engine 20.10 the output of a command that was killed together
with its container never ends, and nothing is known of the command any more."""

EXIT_KILLED = 137
"""The exit code that newer Engines report for a command that was killed together with its container."""

NOT_BEGUN_CODES = frozenset({126, 127, 128})
"""Exit codes that Docker reports for a command that runc could not start; the first two if its file is the reason."""

_KILLED_CODES = frozenset({137, 255})
"""Exit codes of a container that was killed, perhaps since its containerd-shim was, or whose end was missed."""
_ALIVE = frozenset({"running", "paused", "restarting"})

_FIRST_PAUSE, _MAX_PAUSE = 0.001, 0.5
"""Seconds between two polls for what Docker is to learn any moment. Each pause is twice the one before."""

_FAST_SECONDS, _SLOW_PAUSE = 0.2, 0.2
"""After so many seconds since the output has ended no pause is shorter: at most five questions a second, also where the
process goes on for long before it ends."""


def _is_running(rt: Runtime, container_id: str) -> bool:
    """Return whether the container may run: so may one that Docker does not inspect (CONTAINER_UNKNOWN)."""
    try:
        return rt.view.container(container_id).state.may_run
    except NotFound:
        return False


def last_known_running(rt: Runtime, container_id: str) -> bool:
    """Return the same by the last known state. Never waits, and is known while Docker is away."""
    known = rt.view.last_known(container_id)
    return known is not None and known.state.may_run


def _inspect(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Read the state of an exec; of one that Docker forgot with the end of its container, that it was killed."""
    try:
        return rt.engine.inspect_exec(exec_id)
    except NotFound:
        if _is_running(rt, container_id):
            raise
        return ExecInspect(exit_code=EXIT_KILLED)


def exit_code(ended: ExecInspect, exec_id: str) -> int:
    """Return the exit code of an exec that has ended."""
    if ended.exit_code is None:
        raise ShimError(f"exec {exec_id}: Docker does not report how it ended")
    return ended.exit_code


@contextmanager
def first_process(rt: Runtime, container_id: str) -> Iterator[ProcessHandle | None]:
    """Yield a handle of a container's first process, None where none can be seen."""
    record = rt.view.last_known(container_id)
    handle = None
    with ExitStack() as opened:
        if record is not None and record.state.pid:
            with suppress(OSError):
                handle = opened.enter_context(ProcessHandle(record.state.pid))
        yield handle


def check_exit_code(
    rt: Runtime, ended: ExecInspect, exec_id: str, *, container_id: str, first: ProcessHandle | None
) -> None:
    """Raise for an exit code that is not the command's. `first` is the container's first process.

    FailedPrecondition if the container ended before the command began, for which Docker reports one of NOT_BEGUN_CODES.

    ShimError for an exit code 0 that is no success: of a command that was cut off with its container.

    When a containerd-shim is killed, Docker may report 0 for its execs, whose processes go on until the container is
    killed. So 0 counts only where the process of the command is gone, and the container goes on or has ended otherwise
    than by being killed: a hook may well end its container.
    """
    if ended.exit_code in NOT_BEGUN_CODES and not ended.pid and (first is None or first.has_ended()):
        raise FailedPrecondition(f"exec {exec_id}: container {container_id} is not running")
    if ended.exit_code != 0:
        return
    what = f"exec {exec_id} in container {container_id}: docker reports exit code 0"
    if _still_runs(ended.pid, exec_id=exec_id, container_id=container_id):
        raise ShimError(f"{what}, but process {ended.pid} still runs; was the container's containerd-shim killed?")
    if first is None or not first.has_ended():
        return
    code = _container_exit_code(rt, container_id)
    if code is None:
        raise ShimError(f"{what}, but the container's process is gone, and docker has not reported its exit code")
    if code in _KILLED_CODES:
        raise ShimError(f"{what}, but the container was killed (exit code {code}): the result is not known")


def _still_runs(pid: int, *, exec_id: str, container_id: str) -> bool:
    """Return whether a process still runs in the cgroup of the container."""
    if not pid:
        return False
    with open_process(pid, what=f"exec {exec_id}") as handle:
        return handle is not None and not handle.has_ended() and is_in_container(pid, container_id)


def _container_exit_code(rt: Runtime, container_id: str) -> int | None:
    """Wait until Docker reports the end of a container whose process is gone; None if not within REPORT_SECONDS.

    From Docker, not from the view, which defers an exit until all output is written.
    """
    outer, what = deadline.current(), f"wait for docker's report of the end of container {container_id}"
    try:
        with deadline.bound(REPORT_SECONDS):
            pauses = _pauses(what, began=time.monotonic())
            while (state := rt.engine.inspect_container(container_id).state).status in _ALIVE:
                next(pauses)
            return state.exit_code
    except NotFound:
        return None
    except DeadlineExceeded:
        outer.check(what)
        return None


def wait_ended(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Wait until an exec whose output has ended has ended itself: a process may close its output and go on.

    As long as that takes: the kernel reports the end by a pidfd. Raise ShimError if Docker does not report within
    REPORT_SECONDS what the kernel has shown. If the container has ended by then, the process counts as killed.
    """
    poll_until = partial(_poll_until, rt, exec_id, container_id=container_id, began=time.monotonic())
    found = poll_until(lambda found: found.pid > 0 or not found.running)
    if found.running:
        with open_process(found.pid, what=f"exec {exec_id}") as handle:
            # The pid could have been reused before the handle was opened; the Engine's answer after it decides.
            if handle is not None and _inspect(rt, exec_id, container_id=container_id).running:
                wait_all_ended([handle], what=f"wait for the end of exec {exec_id}")
        # Docker learns of the end a little later than the kernel.
        found = poll_until(lambda found: not found.running)
    return found


def end_process(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect | None:
    """Kill the exec'd process with its process group, and wait until it is gone: KILL_SECONDS, whatever the scope is.

    None if it was killed. How it ended if it had ended by itself, and only what it left in the background still held
    its output open: then the command has finished in time.

    None also if it has not begun, or has not ended by then: deferred checks kill it as soon as that can be done. Docker
    may have the order to start it and begin it later. The same if it cannot be killed now, but then the failure is
    raised: ResourceExhausted when no descriptor is free.
    """
    try:
        with deadline.shielded(KILL_SECONDS):
            found, over = _kill_process(rt, exec_id, container_id=container_id, seconds=KILL_SECONDS)
    except Exception:
        end_later(rt, exec_id, container_id=container_id)
        raise
    if not over:
        log.warning("exec process still running, kill deferred", exec_id=exec_id, pid=found.pid)
        end_later(rt, exec_id, container_id=container_id)
    return found if found.exit_code is not None and not found.running else None


def kill_after_failure(rt: Runtime, exec_id: str, *, container_id: str, because: BaseException) -> ExecInspect | None:
    """Kill the process as `end_process` does, for a client that gets the failure `because`.

    A kill that is put off is logged and added to that failure as a note.
    """
    try:
        return end_process(rt, exec_id, container_id=container_id)
    except NotFound:  # Docker forgot it with the end of its container, which the view does not know yet
        return None
    except ShimError as error:
        because.add_note(f"the exec'd process could not be ended yet: {error}")
        log.warning("failed to kill exec process, kill deferred", exec_id=exec_id, error=error)
        return None


def end_later(rt: Runtime, exec_id: str, *, container_id: str) -> None:
    """Kill an exec'd process by deferred checks: it has not begun, cannot be killed now, or no caller waits for it.

    By polling: Docker's event of an exec comes before the process has a pid, and to have these events sent would cost
    more for every probe of the node than the few questions here.
    """
    check = partial(_kill_late, rt, exec_id, container_id=container_id)
    rt.deferred_checks.add(check, what=f"exec {exec_id} in container {container_id}", seconds=LATE_SECONDS)


def _kill_late(rt: Runtime, exec_id: str, *, container_id: str) -> bool:
    """Kill the process of an exec if it has one now; return whether it has ended or never can begin."""
    try:
        with deadline.bound(deferred_checks.CHECK_SECONDS):
            found, over = _kill_process(rt, exec_id, container_id=container_id, seconds=LATE_KILL_SECONDS)
    except NotFound:  # the Engine has been restarted
        return True
    if over and found.running:
        log.warning("killed exec process late", exec_id=exec_id)
    return over or not (found.running or _is_running(rt, container_id))


def _kill_process(rt: Runtime, exec_id: str, *, container_id: str, seconds: float) -> tuple[ExecInspect, bool]:
    """Kill the process of an exec, and wait `seconds` for its end.

    Return its state before, and whether nothing of it is left.

    With one question to Docker, or two where there is a process to kill: it must not wait for one to begin.
    """
    found = _inspect(rt, exec_id, container_id=container_id)
    if not found.running:
        return found, found.exit_code is not None
    if not found.pid:
        return found, False
    with open_process(found.pid, what=f"exec {exec_id}") as handle:
        if handle is None:
            # Docker may be seconds late to note an end; what it has not reported in time has not ended in time.
            return found, True
        again = _inspect(rt, exec_id, container_id=container_id)  # as in `wait_ended`
        if not again.running:
            return again, True
        handle.kill_group()  # what it runs would go on without a reader
        return found, handle.ends_within(seconds)


def _poll_until(
    rt: Runtime, exec_id: str, wanted: Callable[[ExecInspect], bool], *, container_id: str, began: float
) -> ExecInspect:
    """Poll the state of an exec until its state is `wanted`, at most for REPORT_SECONDS.

    Then ShimError: a result that is guessed would pass a probe or a hook that has failed. Not DeadlineExceeded, which a
    kubelet takes for a probe that has failed; any other error makes it ignore this result. If the container has ended,
    the process was killed with it. `began` is when its output ended, by the monotonic clock.
    """
    outer, what = deadline.current(), f"wait for docker's report of exec {exec_id}"
    try:
        with deadline.bound(REPORT_SECONDS):
            pauses = _pauses(what, began=began)
            while not wanted(found := _inspect(rt, exec_id, container_id=container_id)):
                next(pauses)
            return found
    except DeadlineExceeded as error:
        outer.check(what)
        if not last_known_running(rt, container_id):
            return ExecInspect(exit_code=EXIT_KILLED)
        raise ShimError(
            f"exec {exec_id} in container {container_id}: its output has ended, but docker has not reported its end or "
            f"its process for {REPORT_SECONDS:.0f} s, so that its exit code is not known; if this repeats, restart "
            "containerd and docker"
        ) from error


def _pauses(what: str, *, began: float) -> Iterator[None]:
    """Yield after a pause, each time twice as long as before.

    Raise Cancelled or DeadlineExceeded once `what` must not go on.

    Once _FAST_SECONDS have passed since `began`, no pause is shorter than _SLOW_PAUSE.
    """
    seconds, never, scope = _FIRST_PAUSE, threading.Event(), deadline.current()
    while True:
        scope.check(what)
        if time.monotonic() - began > _FAST_SECONDS:
            seconds = max(seconds, _SLOW_PAUSE)
        with scope.on_cancel(never.set):
            never.wait(scope.remaining(seconds))
        yield
        seconds = min(2 * seconds, _MAX_PAUSE)
