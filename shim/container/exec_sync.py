"""ExecSync."""

from collections.abc import Sequence
from contextlib import nullcontext

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container.exec_process import (
    RUNNING_CHECK_SECONDS,
    check_exit_code,
    exit_code,
    first_process,
    kill_after_failure,
    last_known_running,
    wait_ended,
)
from shim.container.find import running_container
from shim.domain.errors import DeadlineExceeded
from shim.engine.answers import ExecInspect
from shim.engine.detach_keys import detach_keys
from shim.engine.interface import ProcessStream
from shim.engine.stdcopy import STDERR, STDOUT
from shim.runtime import Runtime

OUTPUT_LIMIT = 16 << 20
"""Bytes kept of each stream, as with the other runtimes; the rest is read and dropped, so that the command ends."""


def exec_sync(rt: Runtime, *, container_id: str, cmd: Sequence[str], timeout: int) -> pb.ExecSyncResponse:
    """Run a command in a running container and return its output and exit code.

    `timeout` is in seconds, 0 for none. When it is over, the client goes away, or anything fails, the process is
    killed before DeadlineExceeded, Cancelled or the failure is raised. That is waited for for a moment only
    (`exec_process.KILL_SECONDS`): a process that Docker has not begun by then, or that cannot be ended now, is killed
    later, as soon as that can be done. A view that is lost in the meantime is no failure: the command's own end counts.
    Raise an error where Docker's exit code is not the command's (`exec_process.check_exit_code`).
    """
    record = running_container(rt, container_id=container_id)
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    ended: ExecInspect | None
    with first_process(rt, record.id) as first:
        with deadline.bound(timeout) if timeout else nullcontext():
            exec_id = rt.engine.create_exec(record.id, body=exec_body(rt, cmd))
            try:
                with rt.engine.start_exec(exec_id) as stream:
                    _collect(rt, stream, output, container_id=record.id)
                ended = wait_ended(rt, exec_id, container_id=record.id)
            except BaseException as error:
                ended = kill_after_failure(rt, exec_id, container_id=record.id, because=error)
                if ended is None or not isinstance(error, DeadlineExceeded):
                    raise
        check_exit_code(rt, ended, exec_id, container_id=record.id, first=first)
    return pb.ExecSyncResponse(
        stdout=bytes(output[STDOUT]), stderr=bytes(output[STDERR]), exit_code=exit_code(ended, exec_id)
    )


def exec_body(rt: Runtime, cmd: Sequence[str]) -> dict[str, object]:
    """Build Docker's exec create body for a command without input and terminal."""
    return {
        "Cmd": list(cmd),
        "AttachStdout": True,
        "AttachStderr": True,
        "AttachStdin": False,
        "Tty": False,
        "DetachKeys": detach_keys(rt.server.mark),
    }


def _collect(rt: Runtime, stream: ProcessStream, output: dict[int, bytearray], *, container_id: str) -> None:
    """Take all output.

    It may never end if the container does: then until none has come for RUNNING_CHECK_SECONDS after that.
    """
    while True:
        ran = last_known_running(rt, container_id)
        ended, came = _collect_for_a_while(stream, output)
        if ended or not (ran or came):
            return


def _collect_for_a_while(stream: ProcessStream, output: dict[int, bytearray]) -> tuple[bool, bool]:
    """Take output for a while; return whether it has come to its end, and whether there was any."""
    outer, came = deadline.current(), False
    try:
        with deadline.bound(RUNNING_CHECK_SECONDS):
            for which, data in stream.frames():
                came = True
                kept = output[which]
                kept += data[: OUTPUT_LIMIT - len(kept)]
    except DeadlineExceeded:
        outer.check("collect the output of an exec")
        return False, came
    return True, came
