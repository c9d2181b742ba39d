"""Read-only mounts, with what is mounted below them or without."""

import ctypes
import errno
from collections.abc import Mapping
from functools import cache

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.engine.interface import JsonObject
from shim.engine.versions import too_old

READ_ONLY_RECURSIVE_API = (1, 44)
"""From here on Docker makes read-only mounts recursively read-only by default."""

UNSUPPORTED = "RROUnsupported"
"""The kubelet expects this at the beginning of a message."""

_FEATURES = "org.opencontainers.runtime-spec.features"
_MOUNT_SETATTR = 442
"""Number of the system call, the same on every architecture that Docker runs on (Linux 5.12)."""


class _Features(msgspec.Struct, frozen=True, rename="camel"):
    """The features of an OCI runtime, as far as they are read here."""

    mount_options: list[str] | None = None


def read_only_options(
    mount: pb.Mount, *, field: str, api_version: tuple[int, int], recursive_read_only: bool
) -> JsonObject:
    """Build the part of `BindOptions` for the read-only side of a mount."""
    if not mount.recursive_read_only:
        is_explicit = mount.readonly and api_version >= READ_ONLY_RECURSIVE_API
        return {"ReadOnlyNonRecursive": True} if is_explicit else {}
    if not mount.readonly or mount.propagation != pb.PROPAGATION_PRIVATE:
        raise InvalidArgument(f"{field}.recursive_read_only needs readonly and private propagation")
    if api_version < READ_ONLY_RECURSIVE_API:
        reason = too_old(api_version, needs=READ_ONLY_RECURSIVE_API)
        raise FailedPrecondition(f"{UNSUPPORTED}: {field}.recursive_read_only: {reason}")
    if not recursive_read_only:
        raise FailedPrecondition(f"{UNSUPPORTED}: {field}.recursive_read_only: the OCI runtime or the kernel cannot")
    return {"ReadOnlyForceRecursive": True}


def recursive_read_only_supported(runtime_status: Mapping[str, str] | None) -> bool:
    """Return whether an OCI runtime has the mount option `rro` among its features (API 1.44), and the kernel has it."""
    text = (runtime_status or {}).get(_FEATURES, "")
    try:
        features = msgspec.json.decode(text, type=_Features)
    except msgspec.DecodeError:  # what cannot be read promises nothing
        return False
    return "rro" in (features.mount_options or ()) and kernel_sets_attributes_recursively()


@cache
def kernel_sets_attributes_recursively() -> bool:
    """Return whether there is mount_setattr(2), by which runtimes do it; they list the option without checking that."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Without attributes it changes nothing and is refused, unless the kernel does not know it.
    libc.syscall(_MOUNT_SETATTR, -1, None, 0, None, 0)
    return ctypes.get_errno() != errno.ENOSYS
