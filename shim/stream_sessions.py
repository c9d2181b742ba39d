"""Runs streaming sessions of connected clients: exec, attach and port-forward."""

import socket
from functools import partial

import structlog

from shim.base import meter
from shim.container.attach import run_attach
from shim.container.exec import run_exec
from shim.container.exec_process import first_process
from shim.domain.errors import Cancelled, ShimError
from shim.runtime import Runtime
from shim.sandbox.portforward import dial
from shim.streaming import portforward
from shim.streaming.remotecommand import Streams, status_from_exit_code, status_from_failure, wait_streams
from shim.streaming.session import Session
from shim.streaming.stalls import Stalled
from shim.streaming.tokens import Kind, PortForwardTask, RemoteTask, Task

REASON_SECONDS = 30.0
"""Limit for sending a stalled client the reason why its session ends."""

log = structlog.get_logger(__name__)


def serve_session(rt: Runtime, task: Task, session: Session, protocol: str) -> None:
    """Serve a session to its end. Raise Cancelled if the client goes away, ShimError if it breaks the protocol."""
    kind = "portforward" if isinstance(task, PortForwardTask) else str(task.kind)
    with meter.timed(meter.Kind.STREAM, kind):
        if isinstance(task, PortForwardTask):
            _port_forward(rt, task, session)
        else:
            _remote_command(rt, task, session, protocol)


def _port_forward(rt: Runtime, task: PortForwardTask, session: Session) -> None:
    def connect(port: int) -> socket.socket:
        return dial(rt, sandbox_id=task.sandbox_id, port=port)

    with first_process(rt, task.sandbox_id) as pause:
        portforward.forward(session, dial=connect, seconds=rt.config.streaming_creation_timeout, pause=pause)


def _remote_command(rt: Runtime, task: RemoteTask, session: Session, protocol: str) -> None:
    streams = wait_streams(session, task, protocol=protocol, seconds=rt.config.streaming_creation_timeout)
    run = partial(_exec_status if task.kind is Kind.EXEC else _attach_status, rt, task, streams, protocol)
    try:
        status = run()
    except Cancelled:
        raise
    except Stalled as error:
        _end_stalled(session, streams, error, protocol=protocol)
        raise
    except ShimError as error:
        status = status_from_failure(str(error), protocol=protocol)
    except Exception as fault:  # also reported: a client takes an empty error stream for success
        log.exception("streaming session failed", kind=str(task.kind), container=task.container_id)
        message = f"{task.kind}: unexpected {type(fault).__name__}, see the log of the server"
        status = status_from_failure(message, protocol=protocol)
    for output in (streams.stdout, streams.stderr):
        if output is not None:
            output.finish()
    streams.error.write(status)
    streams.error.finish()


def _end_stalled(session: Session, streams: Streams, error: Stalled, *, protocol: str) -> None:
    """Send the client the reason why its session ends; end the session if it does not read it in REASON_SECONDS."""
    reason = status_from_failure(str(error), protocol=protocol)
    if streams.error.write(reason, seconds=REASON_SECONDS):
        session.end(str(error))


def _exec_status(rt: Runtime, task: RemoteTask, streams: Streams, protocol: str) -> bytes:
    return status_from_exit_code(run_exec(rt, task=task, streams=streams), protocol=protocol)


def _attach_status(rt: Runtime, task: RemoteTask, streams: Streams, protocol: str) -> bytes:
    run_attach(rt, task=task, streams=streams)
    return status_from_exit_code(0, protocol=protocol)
