"""PortForward."""

import socket
from functools import partial
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import ShimError, reason_of
from shim.netns.enter import in_netns, in_netns_of
from shim.pod import host_network, ready_sandbox
from shim.runtime import Runtime
from shim.streaming.tokens import PortForwardTask
from shim.view.processes import is_process_of

DIAL_SECONDS = 30.0

LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Addresses to try, in this order."""


def port_forward_url(rt: Runtime, *, request: pb.PortForwardRequest) -> str:
    """Return a URL for a single port forward. Raise FailedPrecondition unless the pod is ready."""
    record = ready_sandbox(rt, sandbox_id=request.pod_sandbox_id)
    return rt.stream_tokens.url_of(PortForwardTask(sandbox_id=record.id, ports=tuple(request.port)))


def dial(rt: Runtime, *, sandbox_id: str, port: int) -> socket.socket:
    """Connect to a port on the loopback of a pod.

    The socket is created in the pod's network namespace, to which it belongs from then on. Raise ShimError with the
    error of each address.
    """
    record = ready_sandbox(rt, sandbox_id=sandbox_id)
    with deadline.bound(DIAL_SECONDS):
        if host_network(record.config):
            return _connect(port, sandbox_id=record.id)
        connect = partial(_connect, port, sandbox_id=record.id)
        checkpoint = rt.checkpoints.get(record.id)
        if record.legacy or checkpoint is None or checkpoint.network is None:
            # Without a network, the namespace is not pinned and ends with pause.
            return in_netns_of(record.state.pid, connect, confirmed=partial(is_process_of, record))
        return in_netns(Path(checkpoint.network.netns), connect)


def _connect(port: int, *, sandbox_id: str) -> socket.socket:
    reasons = []
    for family, address in LOOPBACK:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(deadline.current().remaining())
            made.connect((address, port))
        except OSError as error:
            made.close()
            reasons.append(f"{address}: {reason_of(error)}")
        else:
            made.settimeout(None)
            return made
    raise ShimError(f"connect to port {port} of pod sandbox {sandbox_id}: {', '.join(reasons)}")
