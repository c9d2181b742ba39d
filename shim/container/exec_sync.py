"""ExecSync."""

from collections.abc import Sequence
from contextlib import nullcontext

from shim import deadline
from shim.api.v1 import api_pb2 as pb
from shim.container.exec_process import LOOK_SECONDS, end_failed, end_process, exit_code, ran_last, wait_ended
from shim.container.find import running_container
from shim.engine.answers import ExecInspect
from shim.engine.interface import ProcessStream
from shim.engine.stdcopy import STDERR, STDOUT
from shim.errors import Cancelled, DeadlineExceeded
from shim.runtime import Runtime

OUTPUT_LIMIT = 16 << 20
"""Bytes kept of each stream, as with the other runtimes; the rest is read and dropped, so that the command ends."""


def exec_sync(rt: Runtime, *, container_id: str, cmd: Sequence[str], timeout: int) -> pb.ExecSyncResponse:
    """Run a command in a running container and return its output and exit code.

    `timeout` is in seconds, 0 for none. When it is over, the client goes away, or anything fails, the process is
    killed, and it is gone before DeadlineExceeded, Cancelled or the failure is raised. One that Docker has not begun by
    then is killed when it begins. That the view is lost meanwhile is no failure: the command's own end is awaited.
    """
    record = running_container(rt, container_id=container_id)
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    ended: ExecInspect | None
    with deadline.bound(timeout) if timeout else nullcontext():
        exec_id = rt.engine.create_exec(record.id, body=exec_body(cmd))
        try:
            with rt.engine.start_exec(exec_id) as stream:
                while not _collected(stream, output) and ran_last(rt, record.id):
                    pass
            ended = wait_ended(rt, exec_id, container_id=record.id)
        except (DeadlineExceeded, Cancelled) as error:
            ended = end_process(rt, exec_id, container_id=record.id)
            if ended is None or isinstance(error, Cancelled):
                raise
        except BaseException as error:
            end_failed(rt, exec_id, container_id=record.id, because=error)
            raise
    return pb.ExecSyncResponse(
        stdout=bytes(output[STDOUT]), stderr=bytes(output[STDERR]), exit_code=exit_code(ended, exec_id)
    )


def exec_body(cmd: Sequence[str]) -> dict[str, object]:
    """Docker's exec create body for a command without input and terminal."""
    return {"Cmd": list(cmd), "AttachStdout": True, "AttachStderr": True, "AttachStdin": False, "Tty": False}


def _collected(stream: ProcessStream, output: dict[int, bytearray]) -> bool:
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
