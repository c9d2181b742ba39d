"""Probes a CRI server as a client."""

import errno
import queue
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import grpc

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.domain.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ShimError,
    Unavailable,
    Unsupported,
    reason_of,
)

_SECONDS = 5.0
"""Default limit for an answer."""
_UNSERVED = frozenset({errno.ENOENT, errno.ECONNREFUSED})
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""An open connection of another channel of this process does not show that new clients can connect."""
_DENIED = frozenset({errno.EACCES, errno.EPERM})


_RUNTIME_READY = "RuntimeReady"
_NETWORK_READY = "NetworkReady"


@dataclass(frozen=True, slots=True)
class Probe:
    """What a CRI server reports about itself."""

    runtime: str
    """Name and version of the runtime. The server may remember them while the runtime is down."""
    trouble: str = ""
    """Reason and message if the runtime is not ready."""
    network_trouble: str = ""
    """Reason and message if the network is not ready."""
    flaws: str = ""
    """Messages of the other conditions that are false."""


def probe_at(path: Path) -> Probe:
    """Call Version and Status on the socket at `path`.

    Raise NotFound if no server listens, FailedPrecondition if this user may not connect, Unsupported if it is not a CRI
    server, DeadlineExceeded if it does not answer, Unavailable if it cannot answer without Docker.
    """
    try:
        with _stub_at(path, seconds=_SECONDS) as (stub, until):
            version = stub.Version(pb.VersionRequest(), timeout=max(0.0, until - time.monotonic()))
            status = stub.Status(pb.StatusRequest(), timeout=max(0.0, until - time.monotonic()))
    except grpc.RpcError as error:
        raise _error_from_code(error.code(), f"{path}: {error.details()}", path) from error
    return Probe(
        f"{version.runtime_name} {version.runtime_version}",
        trouble=_unready(status.status, _RUNTIME_READY),
        network_trouble=_unready(status.status, _NETWORK_READY),
        flaws=_flaws(status.status),
    )


def _unready(status: pb.RuntimeStatus, condition: str) -> str:
    """Return why a condition is false; "" if it is true."""
    unready = [each for each in status.conditions if each.type == condition and not each.status]
    return "; ".join(f"{each.reason}: {each.message}" for each in unready)


def _flaws(status: pb.RuntimeStatus) -> str:
    known = {_RUNTIME_READY, _NETWORK_READY}
    return "; ".join(each.message for each in status.conditions if each.type not in known and not each.status)


def check_answers(path: Path, *, seconds: float) -> None:
    """Check that the server at `path` answers within `seconds`. An error, as during an outage of Docker, is an answer.

    Raise the errors of `probe_at` otherwise.
    """
    try:
        with _stub_at(path, seconds=seconds) as (stub, until):
            stub.Version(pb.VersionRequest(), timeout=max(0.0, until - time.monotonic()))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise _no_answer(path, seconds) from error


@contextmanager
def _stub_at(path: Path, *, seconds: float) -> Iterator[tuple[api_pb2_grpc.RuntimeServiceStub, float]]:
    """Connect; yield the stub, and the end of the time by the monotonic clock."""
    until = time.monotonic() + seconds
    _check_served(path, seconds=seconds)
    with grpc.insecure_channel(f"unix:{quote(str(path))}", options=_OWN_CONNECTION) as channel:
        _wait_speaks_grpc(channel, path, seconds=seconds)
        yield api_pb2_grpc.RuntimeServiceStub(channel), until


def _check_served(path: Path, *, seconds: float) -> None:
    """Connect a plain socket first, since gRPC reports the reason of a failed connect only as text."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(seconds)
        try:
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise Unsupported(f"{path} is not a socket")
            probe.connect(str(path))
        except TimeoutError as error:
            raise _no_answer(path, seconds) from error
        except OSError as error:
            kind = NotFound if error.errno in _UNSERVED else FailedPrecondition if error.errno in _DENIED else ShimError
            raise kind(f"connect to {path}: {reason_of(error)}") from error


def _wait_speaks_grpc(channel: grpc.Channel, path: Path, *, seconds: float) -> None:
    until = time.monotonic() + seconds
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    try:
        while (state := states.get(timeout=max(0.0, until - time.monotonic()))) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise Unsupported(f"{path} is not a CRI server: it speaks no gRPC")
    except queue.Empty:
        raise _no_answer(path, seconds) from None
    finally:
        channel.unsubscribe(states.put)


def _error_from_code(code: grpc.StatusCode, text: str, path: Path) -> ShimError:
    match code:
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"{path} is not a CRI server: it does not know Version or Status")
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(text)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return _no_answer(path, _SECONDS)
        case _:
            return ShimError(text)


def _no_answer(path: Path, seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"{path} does not answer within {seconds:g} s")
