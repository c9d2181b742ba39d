"""Version."""

from shim.api.v1 import CRI_VERSION
from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime

KUBELET_API_VERSION = "0.1.0"
"""Of the request message, the same for all runtimes."""

RUNTIME_NAME = "docker"
"""A node's `containerRuntimeVersion` begins with it, and tools on Docker nodes search for it."""


def version(rt: Runtime) -> pb.VersionResponse:
    """Return Docker's version as that of the runtime; from its last answer while Docker is unavailable.

    Raise Unavailable where it has never answered.
    """
    return pb.VersionResponse(
        version=KUBELET_API_VERSION,
        runtime_name=RUNTIME_NAME,
        runtime_version=rt.facts.server_version(),
        runtime_api_version=CRI_VERSION,
    )
