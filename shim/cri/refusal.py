"""Answers each client of systemd's socket with the reason why the server does not start, such as wrong settings.

If the process ended instead, systemd would restart it again and again for the waiting client.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import grpc

from shim.cri.activation import copy_of_passed_socket
from shim.cri.grpc_codes import bounded
from shim.cri.relay import Relay
from shim.domain.errors import FailedPrecondition, reason_of

WRONG_SETTINGS = "the settings of the server are wrong"
NO_START = "the server cannot start"
"""Beginnings of answers."""

_THREADS = 4
"""Enough, since an answer waits for nothing."""

_SETTLE = 1.0
"""Seconds for the last answers to be sent."""


class Refusal(grpc.GenericRpcHandler):
    """Answers each RPC of any name with UNAVAILABLE and `reason`; the caller may change `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def service(  # noqa: D102 - of the base class
        self,
        handler_call_details: grpc.HandlerCallDetails,  # noqa: ARG002 - of the base class
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    def _refuse(self, _requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAVAILABLE, bounded(self.reason))


@contextmanager
def refusing(reason: str) -> Iterator[Refusal]:
    """Refuse clients inside the block; systemd's socket stays open for the program that this process executes next."""
    relay = Relay(copy_of_passed_socket())
    refusal = Refusal(reason)
    server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="refusal"), handlers=[refusal])
    try:
        with tempfile.TemporaryDirectory(prefix=".pydockershim-", dir=relay.prepare()) as private:
            bound = Path(private) / "s"
            server.add_insecure_port(f"unix:{quote(str(bound))}")
            server.start()
            relay.open(bound)
    except (OSError, RuntimeError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        raise FailedPrecondition(f"refuse the clients of systemd's socket: {said}") from error
    try:
        yield refusal
    finally:
        relay.close()
        server.stop(_SETTLE).wait(_SETTLE)
        relay.wait_empty(_SETTLE)
