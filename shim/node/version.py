"""Version."""

from shim.api.v1 import CRI_VERSION
from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime

KUBELET_API_VERSION = "0.1.0"
"""Of the request message, the same for all runtimes."""

RUNTIME_NAME = "docker"
"""What a node's `containerRuntimeVersion` begins with, and what tools on Docker nodes look for."""


def version(rt: Runtime) -> pb.VersionResponse:
    """The runtime is Docker, hence its version is Docker's; of its last answer while it does not answer.

    Unavailable where it never has.
    """
    return pb.VersionResponse(
        version=KUBELET_API_VERSION,
        runtime_name=RUNTIME_NAME,
        runtime_version=rt.facts.server_version(),
        runtime_api_version=CRI_VERSION,
    )
