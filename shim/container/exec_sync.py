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
from shim.errors import Cancelled, DeadlineExceeded, FailedPrecondition, ShimError
from shim.runtime import Runtime

log = structlog.get_logger(__name__)

OUTPUT_LIMIT = 16 << 20
"""Bytes kept of each stream, as with the other runtimes; the rest is read and dropped, so that the command ends."""

KILL_SECONDS = 20.0
"""Bound on ending a process that outlived its deadline."""

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
                _collect(stream, output)
            ended = rt.engine.inspect_exec(exec_id)
        except (DeadlineExceeded, Cancelled) as error:
            ended = _end(rt, exec_id)
            if ended is None or isinstance(error, Cancelled):
                raise
    return pb.ExecSyncResponse(
        stdout=bytes(output[STDOUT]), stderr=bytes(output[STDERR]), exit_code=_exit_code(ended, exec_id)
    )


def exec_body(cmd: Sequence[str]) -> dict[str, object]:
    """Docker's exec create body for a command without input and terminal."""
    return {"Cmd": list(cmd), "AttachStdout": True, "AttachStderr": True, "AttachStdin": False, "Tty": False}


def _collect(stream: ExecStream, output: dict[int, bytearray]) -> None:
    for which, data in stream.frames():
        kept = output[which]
        kept += data[: OUTPUT_LIMIT - len(kept)]


def _exit_code(ended: ExecInspect, exec_id: str) -> int:
    if ended.exit_code is None:
        raise ShimError(f"exec {exec_id}: Docker does not tell how it ended")
    return ended.exit_code


def _end(rt: Runtime, exec_id: str) -> ExecInspect | None:
    """Kill the exec'd process and wait until it is gone; Docker has no call for that.

    None if it was killed. How it ended if it had ended by itself, and only what it left in the background still held
    its output open: then the command has finished in time.
    """
    with deadline.shielded(KILL_SECONDS) as scope:
        found = _wait_begun(rt, exec_id, scope)
        if not found.running:
            return found
        try:
            handle = os.pidfd_open(found.pid)
        except ProcessLookupError:
            return rt.engine.inspect_exec(exec_id)
        try:
            # The pid could have been reused before the handle was opened; the Engine's word after it tells.
            found = rt.engine.inspect_exec(exec_id)
            if not found.running:
                return found
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _wait_gone(handle, exec_id)
        finally:
            os.close(handle)
    return None


def _wait_begun(rt: Runtime, exec_id: str, scope: deadline.Scope) -> ExecInspect:
    """Docker says that an exec runs a little before its process has a pid, and has no event for the latter."""
    never = threading.Event()
    while (found := rt.engine.inspect_exec(exec_id)).running and not found.pid:
        scope.check(f"wait for the process of exec {exec_id}")
        never.wait(0.01)
    return found


def _wait_gone(handle: int, exec_id: str) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    if not poll.poll(KILL_SECONDS * 1000):
        log.error("exec'd process does not end although it was killed", exec_id=exec_id)
