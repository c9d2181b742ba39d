"""Attach."""

from shim.api.v1 import api_pb2 as pb
from shim.container.find import running_container
from shim.container.pump import Passed, copy_output, inputs
from shim.engine.detach_keys import detach_keys
from shim.engine.interface import AttachOptions
from shim.runtime import Runtime
from shim.streaming.remotecommand import Streams, TerminalSize
from shim.streaming.sessions import Kind, RemoteTask


def attach_url(rt: Runtime, *, request: pb.AttachRequest) -> str:
    """Return the URL at which a client can attach, once. Raise FailedPrecondition unless the container is running."""
    record = running_container(rt, container_id=request.container_id)
    task = RemoteTask(
        kind=Kind.ATTACH,
        container_id=record.id,
        tty=request.tty,
        stdin=request.stdin,
        stdout=request.stdout,
        stderr=request.stderr,
    )
    return rt.sessions.url_of(task)


def run_attach(rt: Runtime, *, task: RemoteTask, streams: Streams) -> None:
    """Connect the client with the container's process until one of them ends. Earlier output is not shown.

    Whether the end of the client's input is the end of the container's is the container's `stdin_once`, kept by Docker.
    """

    def resize(size: TerminalSize) -> None:
        rt.engine.resize_container(task.container_id, width=size.width, height=size.height)

    config = rt.view.container(task.container_id).config
    options = AttachOptions(
        stdin=task.stdin and config.stdin,
        stdout=task.stdout,
        stderr=task.stderr,
        detach_keys=detach_keys(rt.server.mark) if config.tty else "",
    )
    with (
        rt.engine.attach_container(task.container_id, options=options) as stream,
        inputs(stream, streams, resize=resize),
    ):
        # The form of the output follows from the container, whatever the client expects.
        copy_output(stream, streams, tty=config.tty, passed=Passed())
