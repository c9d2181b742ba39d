"""Docker names of pods and containers, in the format of all Docker-backed nodes.

The names make `docker ps` readable and reserve an attempt. The server never parses them: labels hold the identity
(`shim.domain.labels`).
"""

import re
import secrets

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

PREFIX = "k8s_"
POD = "POD"
"""Replaces the container's name in the Docker name of a pause container."""
SANDBOX_PREFIX = f"{PREFIX}{POD}_"
INSPECTION_PREFIX = "pydockershim-look-"
"""Prefix of temporary containers for reading files of an image (`shim.image.rootfs`)."""

_ALLOWED = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")
MAX_PART = 253
"""Characters of a name, namespace or uid: Kubernetes's limit for a DNS subdomain."""


def check_name_part(value: str, *, field: str) -> None:
    """Raise InvalidArgument unless `value` can be a part of a Docker name."""
    if not value:
        raise InvalidArgument(f"{field} is empty")
    if len(value) > MAX_PART:
        raise InvalidArgument(f"{field} has {len(value)} characters, at most {MAX_PART} are allowed")
    if not _ALLOWED.match(value):
        raise InvalidArgument(f"{field} {value!r} may hold only letters, digits, '_', '.' and '-'")


def sandbox_name(metadata: pb.PodSandboxMetadata) -> str:
    """Return `k8s_POD_<pod>_<namespace>_<uid>_<attempt>`."""
    return f"{SANDBOX_PREFIX}{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


def container_name(metadata: pb.ContainerMetadata, *, pod: pb.PodSandboxMetadata) -> str:
    """Return `k8s_<container>_<pod>_<namespace>_<uid>_<attempt of the container>`."""
    return f"{PREFIX}{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"


def with_random_suffix(name: str) -> str:
    """Return `name` with eight random hexadecimal digits, for a name whose holder cannot be removed."""
    return f"{name}_{secrets.token_hex(4)}"


def inspection_name() -> str:
    """Return a unique name for an image-inspection container."""
    return INSPECTION_PREFIX + secrets.token_hex(8)
