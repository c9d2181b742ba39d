"""The gRPC server of the CRI: start, drain and stop."""

import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from urllib.parse import quote

import grpc
import structlog

from shim.api.v1 import api_pb2_grpc
from shim.cri.admission import Admission
from shim.cri.endpoint import open_endpoint
from shim.cri.interceptors import CallInterceptor, NamesOf
from shim.cri.rpcs import LIMITS
from shim.cri.workers import Workers
from shim.domain.errors import FailedPrecondition, reason_of

MAX_MESSAGE = 64 << 20
"""Bytes of a message in either direction."""

MAX_RPCS = sum(LIMITS.values()) + 64
"""Concurrent RPCs. `shim.cri.admission` limits each kind; the surplus is for RPCs that are being refused."""

_SETTLE = 1.0
"""Seconds for sending the last responses after their RPCs have ended."""

_CANCEL_SECONDS = 10.0
"""Limit for cancelled RPCs to end. Most end at once; a start that Docker has begun, and the undo of a failed create,
take longer. Reads are answered meanwhile, so only the stop takes longer."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
)

log = structlog.get_logger(__name__)


class CriServer:
    """RuntimeService and ImageService at an endpoint. Can be started and stopped once."""

    def __init__(
        self,
        *,
        endpoint: str,
        runtime: api_pb2_grpc.RuntimeServiceServicer,
        image: api_pb2_grpc.ImageServiceServicer,
        environ: MutableMapping[str, str],
        admission: Admission | None = None,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        names_of: NamesOf = lambda _: {},
    ) -> None:
        """Admit RPCs by `admission`; by default all RPCs up to the limits.

        `names_of` returns the names by which log lines call the container or pod of an id, and must not block.
        `interceptors` run outside the server's own interceptor.
        """
        self._endpoint = endpoint
        self._clients_endpoint = open_endpoint(endpoint, environ=environ)
        self._admission = admission or Admission()
        self._workers = Workers(MAX_RPCS, name="cri")
        self._grpc = grpc.server(
            self._workers,  # type: ignore[arg-type]  # it calls nothing but `submit`
            interceptors=[*interceptors, CallInterceptor(self._admission, names_of=names_of)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=MAX_RPCS,
        )
        api_pb2_grpc.add_RuntimeServiceServicer_to_server(runtime, self._grpc)
        api_pb2_grpc.add_ImageServiceServicer_to_server(image, self._grpc)

    def start(self) -> None:
        """Start to answer RPCs. Raise FailedPrecondition if the endpoint is in use or unavailable."""
        directory = self._clients_endpoint.prepare()
        try:
            with tempfile.TemporaryDirectory(prefix=".pydockershim-", dir=directory) as private:
                self._begin(Path(private) / "s")
        except OSError as error:
            raise FailedPrecondition(f"serve the CRI at {self._endpoint}: {reason_of(error)}") from error
        log.info("serving", endpoint=self._endpoint)

    @property
    def address(self) -> Path:
        """The path at which a client in this process connects like other clients."""
        return self._clients_endpoint.address

    def rpcs(self) -> list[dict[str, object]]:
        """Return a row for each RPC name in progress, for display."""
        return self._admission.rows()

    def drain(self, *, grace: float) -> bool:
        """Prepare a stop: admit only reads and event streams, and give RPCs that must complete `grace` seconds.

        Cancel all other RPCs at once with UNAVAILABLE, and the remaining RPCs at the end of the grace period. Return
        False if an RPC that must complete has still not ended then.
        """
        self._admission.drain()
        if not self._admission.wait_completed(grace):
            log.warning("cancelling RPCs at the end of the grace period", rpcs=self._admission.names())
            self._admission.cancel_all()
        if not self._admission.wait_changes_ended(_CANCEL_SECONDS):
            log.warning("RPCs did not end after their cancellation", rpcs=self._admission.names())
        return self._admission.wait_completed(0)

    def stop(self) -> bool:
        """Refuse new RPCs and cancel those in progress. Return False if some have not ended.

        The socket is removed first, so that a successor can start.
        """
        self._clients_endpoint.close()
        self._admission.drain()
        ended = self._grpc.stop(_SETTLE)
        self._admission.cancel_all()
        idle = self._admission.wait_idle(_SETTLE)
        # A client that connects and sends nothing keeps gRPC waiting although no RPC is left.
        if not ended.wait(_SETTLE):
            self._grpc.stop(0).wait(_SETTLE)
        self._clients_endpoint.wait_empty(_SETTLE)
        self._workers.shutdown()
        return idle

    def _begin(self, bound: Path) -> None:
        try:
            self._workers.start()
            self._grpc.add_insecure_port(f"unix:{quote(str(bound))}")
            self._grpc.start()
            self._clients_endpoint.open(bound)
        except RuntimeError as error:
            raise FailedPrecondition(f"serve the CRI at {self._endpoint}: {error}") from error
