"""Attach."""

from shim.api.v1 import api_pb2 as pb
from shim.container.exec_process import first_process
from shim.container.find import running_container
from shim.container.pump import Output, inputs
from shim.engine.detach_keys import detach_keys
from shim.engine.interface import AttachOptions
from shim.runtime import Runtime
from shim.streaming.remotecommand import Streams, TerminalSize
from shim.streaming.stalls import MinimumRate
from shim.streaming.tokens import Kind, RemoteTask


def attach_url(rt: Runtime, *, request: pb.AttachRequest) -> str:
    """Return a URL for a single attach. Raise FailedPrecondition unless the container is running."""
    record = running_container(rt, container_id=request.container_id)
    task = RemoteTask(
        kind=Kind.ATTACH,
        container_id=record.id,
        tty=request.tty,
        stdin=request.stdin,
        stdout=request.stdout,
        stderr=request.stderr,
    )
    return rt.stream_tokens.url_of(task)


def run_attach(rt: Runtime, *, task: RemoteTask, streams: Streams) -> None:
    """Connect the client with the container's process until either ends. Earlier output is not sent.

    Raise Stalled if the client reads so slowly that it blocks the container. If the container has `stdin_once`, Docker
    closes its input together with the client's.
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
    interval = rt.attach_checks.of(task.container_id)
    patience = MinimumRate(streams.session, interval, what=f"attach to container {task.container_id}")
    with (
        first_process(rt, task.container_id) as first,
        rt.engine.attach_container(task.container_id, options=options) as stream,
    ):
        # The container's configuration, not the request, decides whether the output comes from a terminal.
        output = Output(stream, streams, tty=config.tty, patience=patience, room=rt.backlogs)
        if first is not None:
            streams.session.when_ended(first, output.process_ended)
        with inputs(stream, streams, resize=resize):
            output.copy()
    output.deliver()
