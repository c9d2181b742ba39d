"""Version."""

from shim.api.v1 import CRI_VERSION
from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime

KUBELET_API_VERSION = "0.1.0"
"""The version of the kubelet's runtime API, the same for all runtimes."""

RUNTIME_NAME = "docker"
"""Tools search the node's `containerRuntimeVersion`, which begins with this name, for Docker."""


def version(rt: Runtime) -> pb.VersionResponse:
    """Return Docker's version as the version of the runtime, from its last answer if it does not answer now.

    Raise Unavailable if it has never answered.
    """
    return pb.VersionResponse(
        version=KUBELET_API_VERSION,
        runtime_name=RUNTIME_NAME,
        runtime_version=rt.facts.server_version(),
        runtime_api_version=CRI_VERSION,
    )
