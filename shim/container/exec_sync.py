"""ExecSync."""

import os
import select
import signal
import threading
from collections.abc import Sequence
from contextlib import nullcontext

import structlog

from shim import deadline
from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import ExecInspect, ExecStream
from shim.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound, ShimError
from shim.runtime import Runtime

log = structlog.get_logger(__name__)

OUTPUT_LIMIT = 16 << 20
"""Bytes kept of each stream, as with the other runtimes; the rest is read and dropped, so that the command ends."""

KILL_SECONDS = 20.0
"""Bound on ending a process that outlived its deadline."""

LOOK_SECONDS = 2.0
"""Between two looks whether the container still runs: on Engine 20.10 the output of a command that was killed together
with its container never ends, and nothing is known of the command any more."""

EXIT_KILLED = 137
"""What newer Engines tell of a command that was killed together with its container."""

STDOUT, STDERR = 1, 2


def exec_sync(rt: Runtime, *, container_id: str, cmd: Sequence[str], timeout: int) -> pb.ExecSyncResponse:
    """Run a command in a running container and return its output and exit code.

    `timeout` is in seconds, 0 for none. When it is over, or the client goes away, the process is killed, and it is
    gone before DeadlineExceeded or Cancelled is raised.
    """
    record = rt.view.container(container_id)
    if not record.life.running:
        raise FailedPrecondition(f"container {record.id} does not run")
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    ended: ExecInspect | None
    with deadline.bound(timeout) if timeout else nullcontext():
        exec_id = rt.engine.create_exec(record.id, body=exec_body(cmd))
        try:
            with rt.engine.start_exec(exec_id) as stream:
                while not _collected(stream, output) and _runs(rt, record.id):
                    pass
            ended = _inspected(rt, exec_id, container_id=record.id)
        except (DeadlineExceeded, Cancelled) as error:
            ended = _end(rt, exec_id, container_id=record.id)
            if ended is None or isinstance(error, Cancelled):
                raise
    return pb.ExecSyncResponse(
        stdout=bytes(output[STDOUT]), stderr=bytes(output[STDERR]), exit_code=_exit_code(ended, exec_id)
    )


def exec_body(cmd: Sequence[str]) -> dict[str, object]:
    """Docker's exec create body for a command without input and terminal."""
    return {"Cmd": list(cmd), "AttachStdout": True, "AttachStderr": True, "AttachStdin": False, "Tty": False}


def _collected(stream: ExecStream, output: dict[int, bytearray]) -> bool:
    """Take output for a while; whether it has come to its end."""
    outer = deadline.current()
    try:
        with deadline.bound(LOOK_SECONDS):
            for which, data in stream.frames():
                kept = output[which]
                kept += data[: OUTPUT_LIMIT - len(kept)]
    except DeadlineExceeded:
        outer.check("collect the output of an exec")
        return False
    return True


def _runs(rt: Runtime, container_id: str) -> bool:
    try:
        return rt.view.container(container_id).life.running
    except NotFound:
        return False


def _inspected(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect:
    try:
        return rt.engine.inspect_exec(exec_id)
    except NotFound:
        if _runs(rt, container_id):
            raise
        return ExecInspect(exit_code=EXIT_KILLED)


def _exit_code(ended: ExecInspect, exec_id: str) -> int:
    if ended.exit_code is None:
        raise ShimError(f"exec {exec_id}: Docker does not tell how it ended")
    return ended.exit_code


def _end(rt: Runtime, exec_id: str, *, container_id: str) -> ExecInspect | None:
    """Kill the exec'd process and wait until it is gone; Docker has no call for that.

    None if it was killed. How it ended if it had ended by itself, and only what it left in the background still held
    its output open: then the command has finished in time.
    """
    with deadline.shielded(KILL_SECONDS) as scope:
        found = _wait_begun(rt, exec_id, container_id=container_id, scope=scope)
        if not found.running:
            return found
        try:
            handle = os.pidfd_open(found.pid)
        except ProcessLookupError:
            # Docker may be seconds late to note an end; what it has not told in time has not ended in time.
            found = _inspected(rt, exec_id, container_id=container_id)
            return None if found.running else found
        try:
            # The pid could have been reused before the handle was opened; the Engine's word after it tells.
            found = _inspected(rt, exec_id, container_id=container_id)
            if not found.running:
                return found
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _wait_gone(handle, exec_id)
        finally:
            os.close(handle)
    return None


def _wait_begun(rt: Runtime, exec_id: str, *, container_id: str, scope: deadline.Scope) -> ExecInspect:
    """Docker says that an exec runs a little before its process has a pid, and has no event for the latter."""
    never = threading.Event()
    while (found := _inspected(rt, exec_id, container_id=container_id)).running and not found.pid:
        scope.check(f"wait for the process of exec {exec_id}")
        never.wait(0.01)
    return found


def _wait_gone(handle: int, exec_id: str) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(KILL_SECONDS * 1000):
        log.error("exec'd process does not end although it was killed", exec_id=exec_id)
