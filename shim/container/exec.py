"""Exec."""

from shim.api.v1 import api_pb2 as pb
from shim.container.exec_process import (
    check_success,
    exit_code,
    first_process,
    kill_after_failure,
    last_known_running,
    wait_ended,
)
from shim.container.find import running_container
from shim.container.pump import Passed, copy_output, inputs
from shim.engine.detach_keys import detach_keys
from shim.engine.interface import ProcessStream
from shim.runtime import Runtime
from shim.streaming.remotecommand import Streams, TerminalSize
from shim.streaming.sessions import Kind, RemoteTask

_WITH_SIZE = (1, 42)
"""The first API version in which an exec is started with the size of its terminal."""


def exec_url(rt: Runtime, *, request: pb.ExecRequest) -> str:
    """Return the URL at which a client can run a command, once.

    Raise FailedPrecondition unless the container is running.
    """
    record = running_container(rt, container_id=request.container_id)
    task = RemoteTask(
        kind=Kind.EXEC,
        container_id=record.id,
        cmd=tuple(request.cmd),
        tty=request.tty,
        stdin=request.stdin,
        stdout=request.stdout,
        stderr=request.stderr,
    )
    return rt.sessions.url_of(task)


def run_exec(rt: Runtime, *, task: RemoteTask, streams: Streams) -> int:
    """Run the command between the client's streams and return its exit code.

    When the client goes away, or the session fails, the process is killed before the error is raised. One that Docker
    has not begun by then, or that cannot be ended now, is killed as soon as that can be done.
    """
    exec_id = rt.engine.create_exec(task.container_id, body=_body(rt, task))
    with first_process(rt, task.container_id) as first:
        try:
            _run(rt, task, streams, exec_id=exec_id)
            ended = wait_ended(rt, exec_id, container_id=task.container_id)
        except BaseException as error:
            kill_after_failure(rt, exec_id, container_id=task.container_id, because=error)
            raise
        check_success(rt, ended, exec_id, container_id=task.container_id, first=first)
    return exit_code(ended, exec_id)


def _run(rt: Runtime, task: RemoteTask, streams: Streams, *, exec_id: str) -> None:
    def resize(size: TerminalSize) -> None:
        rt.engine.resize_exec(exec_id, width=size.width, height=size.height)

    passed = Passed()
    with rt.engine.start_exec(exec_id, tty=task.tty, size=_size_at_start(rt, streams)) as stream:
        streams.session.watch(_EndWithContainer(rt, stream, passed, container_id=task.container_id).check)
        with inputs(stream, streams, resize=resize):
            copy_output(stream, streams, tty=task.tty, passed=passed)


def _size_at_start(rt: Runtime, streams: Streams) -> tuple[int, int] | None:
    """Return the size of the terminal if the client has sent it and Docker takes it: the first lines depend on it."""
    if streams.resize is None or rt.engine.api_version < _WITH_SIZE:
        return None
    size = streams.resize.known()
    return None if size is None else (size.width, size.height)


class _EndWithContainer:
    """Ends the output of an exec whose container has ended: see `shim.container.exec_process.RUNNING_CHECK_SECONDS`.

    Not before one check later, nor while there is output that the client has not taken yet: it would be lost.
    """

    def __init__(self, rt: Runtime, stream: ProcessStream, passed: Passed, *, container_id: str) -> None:
        self._rt = rt
        self._stream = stream
        self._passed = passed
        self._container_id = container_id
        self._pieces = -1

    def check(self) -> None:
        """Close the stream if the container ended before the last check, and no output has come since."""
        if last_known_running(self._rt, self._container_id):
            return
        if self._pieces == self._passed.pieces and not self._passed.writing:
            self._stream.close()
        self._pieces = self._passed.pieces


def _body(rt: Runtime, task: RemoteTask) -> dict[str, object]:
    return {
        "Cmd": list(task.cmd),
        "AttachStdin": task.stdin,
        "AttachStdout": task.stdout,
        "AttachStderr": task.stderr,
        "Tty": task.tty,
        "DetachKeys": detach_keys(rt.server.mark),
    }
