"""Asking a server who it is, as clients do."""

from pathlib import Path
from urllib.parse import quote

import grpc

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.errors import Unavailable

_SECONDS = 5.0


def version_at(path: Path) -> pb.VersionResponse:
    """Call Version on the socket at `path`; Unavailable with the reason when it does not answer as a CRI server."""
    with grpc.insecure_channel(f"unix:{quote(str(path))}") as channel:
        try:
            answer: pb.VersionResponse = api_pb2_grpc.RuntimeServiceStub(channel).Version(
                pb.VersionRequest(), timeout=_SECONDS
            )
        except grpc.RpcError as error:
            raise Unavailable(f"{path} does not answer as a CRI server: {error.details()}") from error
    return answer
