"""Probe a CRI server, as a client does."""

import errno
import queue
import socket
import stat
import time
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
_UNSERVED = frozenset({errno.ENOENT, errno.ECONNREFUSED})
_DENIED = frozenset({errno.EACCES, errno.EPERM})


def version_at(path: Path) -> pb.VersionResponse:
    """Call Version on the socket at `path`.

    NotFound when no server listens, FailedPrecondition when this user may not connect, Unsupported when it is no CRI
    server, DeadlineExceeded when it does not answer, Unavailable when it cannot answer without its Docker.
    """
    until = time.monotonic() + _SECONDS
    _check_served(path)
    with grpc.insecure_channel(f"unix:{quote(str(path))}") as channel:
        _wait_speaks_grpc(channel, path, until=until)
        try:
            answer: pb.VersionResponse = api_pb2_grpc.RuntimeServiceStub(channel).Version(
                pb.VersionRequest(), timeout=max(0.0, until - time.monotonic())
            )
        except grpc.RpcError as error:
            raise _error_from_code(error.code(), f"{path}: {error.details()}", path) from error
    return answer


def _check_served(path: Path) -> None:
    """Connect once, since gRPC reports its reasons as text only."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_SECONDS)
        try:
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise Unsupported(f"{path} is not a socket")
            probe.connect(str(path))
        except TimeoutError as error:
            raise _no_answer(path) from error
        except OSError as error:
            kind = NotFound if error.errno in _UNSERVED else FailedPrecondition if error.errno in _DENIED else ShimError
            raise kind(f"connect to {path}: {reason_of(error)}") from error


def _wait_speaks_grpc(channel: grpc.Channel, path: Path, *, until: float) -> None:
    states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    try:
        while (state := states.get(timeout=max(0.0, until - time.monotonic()))) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise Unsupported(f"{path} is not a CRI server: it speaks no gRPC")
    except queue.Empty:
        raise _no_answer(path) from None
    finally:
        channel.unsubscribe(states.put)


def _error_from_code(code: grpc.StatusCode, text: str, path: Path) -> ShimError:
    match code:
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported(f"{path} is not a CRI server: it does not know the call Version")
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(text)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return _no_answer(path)
        case _:
            return ShimError(text)


def _no_answer(path: Path) -> DeadlineExceeded:
    return DeadlineExceeded(f"{path} does not answer within {_SECONDS:g} s")
