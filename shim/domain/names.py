"""Docker names of pods and containers, the way Docker-backed nodes have always spelled them.

They make `docker ps` readable and reserve the name of an attempt. Identity is never parsed from them: that is what
`shim.domain.labels` is for.
"""

import re
import secrets

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

PREFIX = "k8s_"
POD = "POD"
"""What stands for the container's name where the pod as a whole is meant, as Docker-backed nodes have always had it."""
SANDBOX_PREFIX = f"{PREFIX}{POD}_"
LOOK_PREFIX = "pydockershim-look-"
"""Of containers that exist for the moment in which an image's files are read (`shim.image.rootfs`)."""

_ALLOWED = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")
MAX_PART = 253
"""Longest name, namespace or uid: what Kubernetes allows for a DNS subdomain."""


def check_name_part(value: str, *, field: str) -> None:
    """Raise InvalidArgument unless `value` can be a part of a Docker name."""
    if not value:
        raise InvalidArgument(f"{field} is empty")
    if len(value) > MAX_PART:
        raise InvalidArgument(f"{field} has {len(value)} characters, at most {MAX_PART} are allowed")
    if not _ALLOWED.match(value):
        raise InvalidArgument(f"{field} {value!r} may hold only letters, digits, '_', '.' and '-'")


def sandbox_name(metadata: pb.PodSandboxMetadata) -> str:
    """`k8s_POD_<pod>_<namespace>_<uid>_<attempt>`."""
    return f"{SANDBOX_PREFIX}{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


def container_name(metadata: pb.ContainerMetadata, *, pod: pb.PodSandboxMetadata) -> str:
    """`k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`, the attempt being the container's."""
    return f"{PREFIX}{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"


def with_random_suffix(name: str) -> str:
    """`name` and eight random hexadecimal digits, for a name whose holder cannot be removed."""
    return f"{name}_{secrets.token_hex(4)}"


def look_name() -> str:
    """A name nobody has, for a look into an image."""
    return LOOK_PREFIX + secrets.token_hex(8)
