"""ExecSync."""

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container.exec_process import (
    RUNNING_CHECK_SECONDS,
    check_exit_code,
    exec_body,
    exit_code,
    first_process,
    kill_after_failure,
    last_known_running,
    run_by_own_exec,
    wait_ended,
)
from shim.container.find import running_container
from shim.domain.errors import DeadlineExceeded
from shim.engine.answers import ExecInspect
from shim.engine.interface import ProcessStream
from shim.engine.stdcopy import STDERR, STDOUT
from shim.own_exec.own_exec import Request
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

OUTPUT_LIMIT = 16 << 20
"""Maximum bytes kept of each stream, as in other runtimes. Further output is dropped, so that the command can end."""


def exec_sync(rt: Runtime, *, container_id: str, cmd: Sequence[str], timeout: int) -> pb.ExecSyncResponse:
    """Run a command in a running container and return its output and exit code.

    `timeout` is in seconds, 0 for none. If it expires, the client goes away, or anything fails, kill the process and
    raise DeadlineExceeded, Cancelled or the failure. The kill waits at most `exec_process.KILL_SECONDS`. If Docker has
    not started the process by then, or the kill fails, deferred checks kill it later. An outage of the view meanwhile
    is not a failure. Raise an error if Docker's exit code is not the command's (`exec_process.check_exit_code`).
    """
    record = running_container(rt, container_id=container_id)
    began = time.monotonic()
    with deadline.bound(timeout) if timeout else nullcontext():
        done = _by_own_exec(rt, record, cmd)
    if done is not None:
        return done
    return _by_docker(rt, record.id, cmd, seconds=timeout - (time.monotonic() - began) if timeout else None)


def _by_own_exec(rt: Runtime, record: ContainerRecord, cmd: Sequence[str]) -> pb.ExecSyncResponse | None:
    """Return the response; None if Docker must run the command."""
    output = _Kept()
    with run_by_own_exec(rt, record, Request(cmd=cmd)) as command:
        if command is None:
            return None
        try:
            output.take_all(command.streams.frames())
            code = command.wait()
        except BaseException as error:
            known = command.end()
            # With an exit code, the command has finished in time, and background processes keep its output open.
            if known is None or not isinstance(error, DeadlineExceeded):
                raise
            code = known
    return output.response(code)


def _by_docker(rt: Runtime, container_id: str, cmd: Sequence[str], *, seconds: float | None) -> pb.ExecSyncResponse:
    output = _Kept()
    ended: ExecInspect | None
    with first_process(rt, container_id) as first:
        with nullcontext() if seconds is None else deadline.bound(seconds):
            exec_id = rt.engine.create_exec(container_id, body=exec_body(cmd, mark=rt.server.mark))
            try:
                with rt.engine.start_exec(exec_id) as stream:
                    _collect(rt, stream, output, container_id=container_id)
                ended = wait_ended(rt, exec_id, container_id=container_id)
            except BaseException as error:
                ended = kill_after_failure(rt, exec_id, container_id=container_id, because=error)
                if ended is None or not isinstance(error, DeadlineExceeded):
                    raise
        check_exit_code(rt, ended, exec_id, container_id=container_id, first=first, output=output.beginning_of_stdout())
    return output.response(exit_code(ended, exec_id))


class _Kept:
    """The beginning of a command's output."""

    def __init__(self) -> None:
        self._kept = {STDOUT: bytearray(), STDERR: bytearray()}
        self.pieces = 0
        """Number of pieces received."""

    def take_all(self, frames: Iterable[tuple[int, bytes]]) -> None:
        for which, data in frames:
            self.pieces += 1
            kept = self._kept[which]
            kept += data[: OUTPUT_LIMIT - len(kept)]

    def beginning_of_stdout(self) -> bytes:
        return bytes(self._kept[STDOUT][:4096])

    def response(self, code: int) -> pb.ExecSyncResponse:
        return pb.ExecSyncResponse(stdout=bytes(self._kept[STDOUT]), stderr=bytes(self._kept[STDERR]), exit_code=code)


def _collect(rt: Runtime, stream: ProcessStream, output: _Kept, *, container_id: str) -> None:
    """Read all output. After the end of the container, stop if none arrives for RUNNING_CHECK_SECONDS (see there)."""
    outer, pieces = deadline.current(), -1
    while last_known_running(rt, container_id) or output.pieces != pieces:
        pieces = output.pieces
        try:
            with deadline.bound(RUNNING_CHECK_SECONDS):
                output.take_all(stream.frames())
                return
        except DeadlineExceeded:
            outer.check("collect the output of an exec")
