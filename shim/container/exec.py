"""Exec."""

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.process import ProcessHandle, open_process
from shim.container.exec_process import (
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
from shim.container.pump import Output, inputs
from shim.domain.errors import DeadlineExceeded, NotFound
from shim.engine.answers import ExecInspect
from shim.engine.interface import ProcessStream
from shim.own_exec.own_exec import Request
from shim.runtime import Runtime
from shim.streaming.remotecommand import Streams, TerminalSize
from shim.streaming.stalls import WaitForever
from shim.streaming.tokens import Kind, RemoteTask

_WITH_SIZE = (1, 42)
"""First Engine API whose exec start accepts the size of the terminal."""

LOOK_SECONDS = 0.5
"""How long output waits for its client before the server checks whether the process is still running."""

ANSWER_SECONDS = 1.0
"""Limit for Docker's answer about a running exec, which normally takes milliseconds."""


def exec_url(rt: Runtime, *, request: pb.ExecRequest) -> str:
    """Return a URL for a single exec. Raise FailedPrecondition unless the container is running."""
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
    return rt.stream_tokens.url_of(task)


def run_exec(rt: Runtime, *, task: RemoteTask, streams: Streams) -> int:
    """Run the command with the client's streams and return its exit code.

    If the client goes away or the session fails, kill the process and raise the error. If Docker has not started the
    process yet, or the kill fails, deferred checks kill it later.
    """
    code = _by_own_exec(rt, task, streams)
    return _by_docker(rt, task, streams) if code is None else code


def _by_own_exec(rt: Runtime, task: RemoteTask, streams: Streams) -> int | None:
    """Run the command and return its exit code; None if Docker must run it."""
    request = Request(cmd=task.cmd, stdin=task.stdin, tty=task.tty, size=_known_size(streams))
    with run_by_own_exec(rt, running_container(rt, container_id=task.container_id), request) as command:
        if command is None:
            return None

        def resize(size: TerminalSize) -> None:
            command.streams.resize(width=size.width, height=size.height)

        # Nobody but the client waits for this process, so its output may wait for the client without limit.
        output = Output(command.streams, streams, tty=task.tty, patience=WaitForever(), room=rt.backlogs)
        try:
            with inputs(command.streams, streams, resize=resize):
                output.copy()
            return command.wait()
        except BaseException:
            command.end()
            raise


def _by_docker(rt: Runtime, task: RemoteTask, streams: Streams) -> int:
    body = exec_body(
        task.cmd, mark=rt.server.mark, stdin=task.stdin, stdout=task.stdout, stderr=task.stderr, tty=task.tty
    )
    exec_id = rt.engine.create_exec(task.container_id, body=body)
    with first_process(rt, task.container_id) as first:
        try:
            output = _run(rt, task, streams, exec_id=exec_id, first=first)
            ended = wait_ended(rt, exec_id, container_id=task.container_id)
        except BaseException as error:
            kill_after_failure(rt, exec_id, container_id=task.container_id, because=error)
            raise
        check_exit_code(rt, ended, exec_id, container_id=task.container_id, first=first)
    output.deliver()
    return exit_code(ended, exec_id)


def _run(rt: Runtime, task: RemoteTask, streams: Streams, *, exec_id: str, first: ProcessHandle | None) -> Output:
    """Run the command and read all its output. The caller must `deliver` output that the client has not read yet."""

    def resize(size: TerminalSize) -> None:
        rt.engine.resize_exec(exec_id, width=size.width, height=size.height)

    size, takes_size = _known_size(streams), rt.engine.api_version >= _WITH_SIZE
    with rt.engine.start_exec(exec_id, tty=task.tty, size=size if takes_size else None) as stream:
        if size is not None and not takes_size:
            resize(TerminalSize(*size))
        patience = _UntilEnded(rt, streams, exec_id=exec_id)
        output = Output(stream, streams, tty=task.tty, patience=patience, room=rt.backlogs)
        patience.output = output
        if first is not None:
            streams.session.when_ended(first, output.process_ended)
        streams.session.watch(_EndWithContainer(rt, stream, output, container_id=task.container_id).check)
        with inputs(stream, streams, resize=resize):
            output.copy()
    return output


def _known_size(streams: Streams) -> tuple[int, int] | None:
    """Return width and height of the terminal, needed for the first lines of output; None if not sent yet."""
    size = None if streams.resize is None else streams.resize.known()
    return None if size is None else (size.width, size.height)


class _UntilEnded:
    """Lets output wait for its client while the command runs.

    Once the command has ended, the output must be read at once: until then Docker reports no other exit in the
    container, and does not answer an inspect of this exec.
    """

    def __init__(self, rt: Runtime, streams: Streams, *, exec_id: str) -> None:
        self.seconds: float | None = LOOK_SECONDS
        self._rt = rt
        self._session = streams.session
        self._exec_id = exec_id
        self.output: Output

    def waited(self, *, first: bool) -> None:  # noqa: ARG002 - the interface has it
        """Read all output once the process has ended, or at once if the process is gone."""
        found = self._inspect()
        if found is not None and found.running and not found.pid:
            return  # Docker does not know the pid yet; the next call asks again
        self.seconds = None
        if found is not None and found.running:
            with open_process(found.pid, what=f"exec {self._exec_id}") as process:
                # The pid may have been reused before it was opened.
                again = self._inspect()
                if process is not None and again is not None and again.running:
                    self._session.when_ended(process, self.output.process_ended)
                    return
        self.output.process_ended()

    def _inspect(self) -> ExecInspect | None:
        """Return the state of the exec; None if Docker does not answer, because the exec has ended."""
        outer = deadline.current()
        try:
            with deadline.bound(ANSWER_SECONDS):
                return self._rt.engine.inspect_exec(self._exec_id)
        except NotFound:
            return None
        except DeadlineExceeded:
            outer.check(f"inspect exec {self._exec_id}")
            return None


class _EndWithContainer:
    """Closes the output of an exec whose container has ended: see `shim.container.exec_process.RUNNING_CHECK_SECONDS`.

    It waits for a second check without new output, so that no output is lost.
    """

    def __init__(self, rt: Runtime, stream: ProcessStream, output: Output, *, container_id: str) -> None:
        self._rt = rt
        self._stream = stream
        self._output = output
        self._container_id = container_id
        self._pieces = -1

    def check(self) -> None:
        """Close the stream if the container had ended at the last check, and no output has arrived since."""
        if last_known_running(self._rt, self._container_id):
            return
        self._output.process_ended()
        if self._pieces == self._output.pieces:
            self._stream.close()
        self._pieces = self._output.pieces
