"""The process of an exec: waits for its end, verifies its exit code, and kills it. Docker offers only the exit code."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

import structlog

from shim.base import deadline, deferred_checks
from shim.base.process import ProcessHandle, open_process, wait_all_ended
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError
from shim.engine.answers import ExecInspect
from shim.engine.detach_keys import detach_keys
from shim.engine.interface import JsonObject
from shim.own_exec.own_exec import Command, Request
from shim.pod import exec_root_of
from shim.runtime import Runtime
from shim.view.processes import is_in_container
from shim.view.records import ContainerRecord

log = structlog.get_logger(__name__)

KILL_SECONDS = 1.0
"""How long the answer of an exec may be late, because its process is killed first. A kill takes milliseconds while
Docker answers; deferred checks finish a slower kill."""

LATE_SECONDS = 120.0
"""How long deferred checks try to kill an exec, without the time that Docker does not answer. A dockerd that hangs for
long is usually restarted, and then forgets the exec."""

LATE_KILL_SECONDS = 0.1
"""How long a deferred check waits for a killed process. The next check tests whether it is gone."""

REPORT_SECONDS = 20.0
"""Limit for Docker to report a start or an end that has certainly happened, because the output has ended, or because
the process is gone. Docker gets both from containerd, whose event can be lost."""

RUNNING_CHECK_SECONDS = 2.0
"""Interval of checks whether the container still runs. On Engine 20.10, if a command is killed together with its
container, its output never ends, and Docker forgets the command."""

EXIT_KILLED = 137
"""The exit code that newer Engines report for a command that was killed together with its container."""

NOT_BEGUN_CODES = frozenset({126, 127, 128})
"""Exit codes that Docker reports if runc could not start the command."""

_NO_COMMAND_STARTS = 128
"""The code among them whose reason is not the command's file: the node or the container could not run any command."""

_ANY_REASON = 126
"""The code among them that Engines before 28 report for each reason. The output then is runc's error."""

_REASONS_OF_THE_FILE = (
    b"executable file not found",
    b"no such file or directory",
    b"permission denied",
    b"not a directory",
    b"is a directory",
    b"exec format error",
)
"""What runc's error contains if the reason is the command's file."""

_KILLED_CODES = frozenset({137, 255})
"""Exit codes of a killed container, perhaps together with its containerd-shim, or after Docker missed its exit."""
_ALIVE = frozenset({"running", "paused", "restarting"})

_FIRST_PAUSE, _MAX_PAUSE = 0.001, 0.5
"""Seconds between two polls of Docker, which back off exponentially."""


def run_by_own_exec(rt: Runtime, record: ContainerRecord, request: Request) -> AbstractContextManager[Command | None]:
    """Run a command by the server's own exec for the block; yield None if Docker must run it."""
    exec_root = exec_root_of(rt, record.sandbox_id)
    return rt.own_exec.begun(record.id, request, exec_root=exec_root, pid=record.state.pid)


def exec_body(
    cmd: Sequence[str], *, mark: str, stdin: bool = False, stdout: bool = True, stderr: bool = True, tty: bool = False
) -> JsonObject:
    """Build Docker's exec create body; `mark` identifies the execs of this server."""
    return {
        "Cmd": list(cmd),
        "AttachStdin": stdin,
        "AttachStdout": stdout,
        "AttachStderr": stderr,
        "Tty": tty,
        "DetachKeys": detach_keys(mark),
    }


def _is_running(rt: Runtime, container_id: str) -> bool:
    """Return whether the container may run. A container in state CONTAINER_UNKNOWN may run too."""
    try:
        return rt.view.container(container_id).state.may_run
    except NotFound:
        return False


def last_known_running(rt: Runtime, container_id: str) -> bool:
    """Return whether the container may run by its last known state. Never wait; works while Docker is unavailable."""
    known = rt.view.last_known(container_id)
    return known is not None and known.state.may_run


def _inspect(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Inspect an exec. If Docker has forgotten it because its container has ended, return it as killed."""
    try:
        return rt.engine.inspect_exec(exec_id)
    except NotFound:
        if _is_running(rt, container_id):
            raise
        return ExecInspect(exit_code=EXIT_KILLED)


def exit_code(ended: ExecInspect, exec_id: str) -> int:
    """Return the exit code of an ended exec. Raise ShimError if Docker does not report it."""
    if ended.exit_code is None:
        raise ShimError(f"exec {exec_id}: Docker does not report how it ended")
    return ended.exit_code


@contextmanager
def first_process(rt: Runtime, container_id: str) -> Iterator[ProcessHandle | None]:
    """Yield a handle of a container's first process; None if there is no process or it cannot be opened."""
    record = rt.view.last_known(container_id)
    handle = None
    with ExitStack() as opened:
        if record is not None and record.state.pid:
            with suppress(OSError):
                handle = opened.enter_context(ProcessHandle(record.state.pid))
        yield handle


def check_exit_code(
    rt: Runtime,
    ended: ExecInspect,
    exec_id: str,
    *,
    container_id: str,
    first: ProcessHandle | None,
    output: bytes = b"",
) -> None:
    """Raise if Docker's exit code is not the command's. `first` is the container's first process.

    `output` is the beginning of stdout, if the caller has it.

    Raise FailedPrecondition if the container ended before the command began, which Docker reports as one of
    NOT_BEGUN_CODES. Raise ShimError if Docker could not start the command although its file is fine: a kubelet counts
    an exit code as the answer of a probe, but not an error.

    Raise ShimError if exit code 0 is not certain. If a containerd-shim is killed, Docker may report 0 for its execs,
    although their processes run until the container is killed. So 0 is accepted only if the command's process is gone,
    and the container still runs or was not killed. It may have ended regularly, because a hook may end its container.
    """
    if ended.exit_code in NOT_BEGUN_CODES and not ended.pid and (first is None or first.has_ended()):
        raise FailedPrecondition(f"exec {exec_id}: container {container_id} is not running")
    if not ended.pid and _says_no_command_starts(ended.exit_code, output):
        raise ShimError(
            f"exec {exec_id} in container {container_id}: Docker could not start the command, "
            "for example at a limit of processes"
        )
    if ended.exit_code != 0:
        return
    what = f"exec {exec_id} in container {container_id}: Docker reports exit code 0"
    if _still_runs(ended.pid, exec_id=exec_id, container_id=container_id):
        raise ShimError(f"{what}, but process {ended.pid} still runs; was the container's containerd-shim killed?")
    if first is None or not first.has_ended():
        return
    code = _container_exit_code(rt, container_id)
    if code is None:
        raise ShimError(f"{what}, but the container's process is gone, and Docker has not reported its exit code")
    if code in _KILLED_CODES:
        raise ShimError(f"{what}, but the container was killed (exit code {code}): the result is unknown")


def _says_no_command_starts(code: int | None, output: bytes) -> bool:
    """Return whether Docker reports for a command that did not begin that no command could have begun."""
    if code == _ANY_REASON and output.startswith(b"OCI runtime exec failed"):
        return not any(reason in output for reason in _REASONS_OF_THE_FILE)
    return code == _NO_COMMAND_STARTS


def _still_runs(pid: int, *, exec_id: str, container_id: str) -> bool:
    """Return whether the process still runs in the container's cgroup."""
    if not pid:
        return False
    with open_process(pid, what=f"exec {exec_id}") as handle:
        return handle is not None and not handle.has_ended() and is_in_container(pid, container_id)


def _container_exit_code(rt: Runtime, container_id: str) -> int | None:
    """Wait until Docker reports the exit code of a container whose process is gone; None after REPORT_SECONDS.

    This asks Docker, not the view, which holds an exit back until all output is written.
    """
    outer, what = deadline.current(), f"wait for Docker's report of the end of container {container_id}"
    try:
        with deadline.bound(REPORT_SECONDS):
            pauses = _pauses(what)
            while (state := rt.engine.inspect_container(container_id).state).status in _ALIVE:
                next(pauses)
            return state.exit_code
    except NotFound:
        return None
    except DeadlineExceeded:
        outer.check(what)
        return None


def wait_ended(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    """Wait without limit for the end of an exec whose output has ended, because a process may close its output early.

    The kernel reports the end by a pidfd. Raise ShimError if Docker does not report it within REPORT_SECONDS. If the
    container has ended by then, the process counts as killed instead.
    """
    poll_until = partial(_poll_until, rt, exec_id, container_id=container_id)
    found = poll_until(lambda found: found.pid > 0 or not found.running)
    if found.running:
        with open_process(found.pid, what=f"exec {exec_id}") as handle:
            # The pid may have been reused before it was opened, so Docker must still report it as running.
            if handle is not None and _inspect(rt, exec_id, container_id=container_id).running:
                wait_all_ended([handle], what=f"wait for the end of exec {exec_id}")
        # Docker learns of the end slightly later than the kernel.
        found = poll_until(lambda found: not found.running)
    return found


def end_process(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect | None:
    """Kill the exec'd process and its process group, and wait up to KILL_SECONDS for its end, even past the deadline.

    If the process had already exited while background processes kept its output open, return the state of the exec: the
    command finished in time. Else return None.

    Deferred checks kill the process later if it has not ended in time, if the kill fails, or if it has not begun,
    because Docker may still start it. A failed kill also raises its error, such as ResourceExhausted if no descriptor
    is free.
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
    """Kill the process as `end_process` does, because of the error `because`, which the client gets.

    A failed kill is logged and added to `because` as a note. Deferred checks repeat it.
    """
    try:
        return end_process(rt, exec_id, container_id=container_id)
    except NotFound:  # the container has ended, so Docker has forgotten the exec, but the view does not know it yet
        return None
    except ShimError as error:
        because.add_note(f"the exec'd process could not be ended yet: {error}")
        log.warning("failed to kill exec process, kill deferred", exec_id=exec_id, error=error)
        return None


def end_later(rt: Runtime, exec_id: str, *, container_id: str) -> None:
    """Let deferred checks kill an exec'd process, because it has not begun, or cannot be killed now, or nobody waits.

    The checks poll, because Docker's event of an exec comes before the process has a pid. A subscription to these
    events would also cost more, for every probe of the node, than a few polls.
    """
    check = partial(_kill_late, rt, exec_id, container_id=container_id)
    rt.deferred_checks.add(check, what=f"exec {exec_id} in container {container_id}", seconds=LATE_SECONDS)


def _kill_late(rt: Runtime, exec_id: str, *, container_id: str) -> bool:
    """Kill the process of an exec if it exists now; return whether it has ended or cannot begin any more."""
    try:
        with deadline.bound(deferred_checks.CHECK_SECONDS):
            found, over = _kill_process(rt, exec_id, container_id=container_id, seconds=LATE_KILL_SECONDS)
    except NotFound:  # the Engine has been restarted
        return True
    if over and found.running:
        log.warning("killed exec process late", exec_id=exec_id)
    return over or not (found.running or _is_running(rt, container_id))


def _kill_process(rt: Runtime, exec_id: str, *, container_id: str, seconds: float) -> tuple[ExecInspect, bool]:
    """Kill the process of an exec if it has begun, and wait `seconds` for its end.

    Return the state before the kill, and whether the process is gone. Docker is called at most twice.
    """
    found = _inspect(rt, exec_id, container_id=container_id)
    if not found.running:
        return found, found.exit_code is not None
    if not found.pid:
        return found, False
    with open_process(found.pid, what=f"exec {exec_id}") as handle:
        if handle is None:
            # Docker may report an end seconds late. If it has not reported it, the command has not finished in time.
            return found, True
        again = _inspect(rt, exec_id, container_id=container_id)  # the pid may have been reused before it was opened
        if not again.running:
            return again, True
        handle.kill_group()  # else its children would keep running without a reader
        return found, handle.ends_within(seconds)


def _poll_until(rt: Runtime, exec_id: str, wanted: Callable[[ExecInspect], bool], *, container_id: str) -> ExecInspect:
    """Poll the state of an exec until it is `wanted`.

    After REPORT_SECONDS, return the process as killed if the container has ended, otherwise raise ShimError, because a
    guessed result could make a failed probe or hook succeed. DeadlineExceeded would count as a failed probe, while a
    kubelet ignores a probe with another error.
    """
    outer, what = deadline.current(), f"wait for Docker's report of exec {exec_id}"
    try:
        with deadline.bound(REPORT_SECONDS):
            pauses = _pauses(what)
            while not wanted(found := _inspect(rt, exec_id, container_id=container_id)):
                next(pauses)
            return found
    except DeadlineExceeded as error:
        outer.check(what)
        if not last_known_running(rt, container_id):
            return ExecInspect(exit_code=EXIT_KILLED)
        raise ShimError(
            f"exec {exec_id} in container {container_id}: its output has ended, but Docker has not reported its end or "
            f"its process for {REPORT_SECONDS:.0f} s, so its exit code is unknown; if this repeats, restart "
            "containerd and Docker"
        ) from error


def _pauses(what: str) -> Iterator[None]:
    """Yield after a pause that doubles each time.

    Raise Cancelled or DeadlineExceeded for `what` at the end of the current scope.
    """
    seconds, never, scope = _FIRST_PAUSE, threading.Event(), deadline.current()
    while True:
        scope.check(what)
        with scope.on_cancel(never.set):
            never.wait(scope.remaining(seconds))
        yield
        seconds = min(2 * seconds, _MAX_PAUSE)
