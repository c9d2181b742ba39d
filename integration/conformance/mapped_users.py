"""A CRI server in front of another that puts each pod into a user namespace, for clients that ask for none."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc

from integration.pods.user_namespaces import FIRST, SIZE, own_users
from shim.api.v1 import api_pb2 as pb

_THREADS = 64
_OPTIONS = [("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20)]
_LONGEST_SECONDS = 1e6
_STREAMS = ("GetContainerEvents", "StreamPodSandboxes", "StreamContainers", "StreamImages")


@contextmanager
def mapping_users(behind: Path, socket: Path) -> Iterator[None]:
    """Serve the CRI of `behind` at `socket` inside the block."""
    with grpc.insecure_channel(f"unix://{behind}", options=_OPTIONS) as channel, ThreadPoolExecutor(_THREADS) as pool:
        server = grpc.server(pool, handlers=[_Forwarder(channel)], options=_OPTIONS)
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=None).wait()


class _Forwarder(grpc.GenericRpcHandler):
    """Forwards the bytes of each call; only the calls that make pods and containers are changed."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._mapped: dict[str, pb.NamespaceOption] = {}
        """The namespaces of each changed pod, by id."""
        self._numbers = count()
        self._calls: dict[str, Callable[[bytes, grpc.ServicerContext], bytes]] = {
            "RunPodSandbox": self._run,
            "CreateContainer": self._create,
        }

    def service(self, call: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the handler of a method."""
        name = call.method.rpartition("/")[2]
        if name in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(partial(self._stream, call.method))
        return grpc.unary_unary_rpc_method_handler(self._calls.get(name) or partial(self._unary, call.method))

    def _unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        try:
            return call(request, timeout=_timeout(context))
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")

    def _stream(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
        answers = call(request, timeout=_timeout(context))

        def cancel() -> None:
            answers.cancel()

        context.add_callback(cancel)
        try:
            yield from answers
        except grpc.RpcError as error:
            context.abort(error.code(), error.details() or "")

    def _run(self, serialized: bytes, context: grpc.ServicerContext) -> bytes:
        request = pb.RunPodSandboxRequest.FromString(serialized)
        security = request.config.linux.security_context
        mapped = _can_be_mapped(security)
        if mapped:
            _add_users(security.namespace_options, number=next(self._numbers))
            serialized = request.SerializeToString()
        answer = self._unary("/runtime.v1.RuntimeService/RunPodSandbox", serialized, context)
        if mapped:
            sandbox = pb.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
            self._mapped[sandbox] = security.namespace_options
        return answer

    def _create(self, serialized: bytes, context: grpc.ServicerContext) -> bytes:
        request = pb.CreateContainerRequest.FromString(serialized)
        options = self._mapped.get(request.pod_sandbox_id)
        if options is not None:
            for security in (request.config.linux.security_context, request.sandbox_config.linux.security_context):
                security.namespace_options.userns_options.CopyFrom(options.userns_options)
            serialized = request.SerializeToString()
        return self._unary("/runtime.v1.RuntimeService/CreateContainer", serialized, context)


def _timeout(context: grpc.ServicerContext) -> float | None:
    """Return the remaining seconds of a call; None without a deadline: grpcio returns a huge number then."""
    remaining = context.time_remaining()
    return remaining if remaining < _LONGEST_SECONDS else None


def _can_be_mapped(security: pb.LinuxSandboxSecurityContext) -> bool:
    """Return whether Kubernetes allows a user namespace for such a pod, and the pod does not have one yet."""
    options = security.namespace_options
    on_host = pb.NODE in (options.pid, options.ipc, options.network)
    return not (on_host or security.privileged or options.HasField("userns_options"))


def _add_users(options: pb.NamespaceOption, *, number: int) -> None:
    options.userns_options.CopyFrom(own_users(FIRST + number * SIZE).userns_options)
