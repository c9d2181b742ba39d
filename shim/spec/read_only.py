"""Read-only mounts, recursive or not."""

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
"""First Engine API that makes read-only mounts recursive by default."""

UNSUPPORTED = "RROUnsupported"
"""The prefix of error messages that the kubelet looks for."""

_FEATURES = "org.opencontainers.runtime-spec.features"
_MOUNT_SETATTR = 442
"""Number of the system call, the same on every architecture that Docker runs on (Linux 5.12)."""


class _Features(msgspec.Struct, frozen=True, rename="camel"):
    """The features of an OCI runtime that are read here."""

    mount_options: list[str] | None = None


def read_only_options(
    mount: pb.Mount, *, field: str, api_version: tuple[int, int], recursive_read_only: bool
) -> JsonObject:
    """Build the options of `BindOptions` for a read-only mount; {} if there are none.

    Raise InvalidArgument or FailedPrecondition if a recursive read-only mount is not possible.
    """
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
    """Return whether an OCI runtime lists the mount option `rro` in its features (API 1.44), and the kernel has it."""
    text = (runtime_status or {}).get(_FEATURES, "")
    try:
        features = msgspec.json.decode(text, type=_Features)
    except msgspec.DecodeError:
        return False
    return "rro" in (features.mount_options or ()) and kernel_sets_attributes_recursively()


@cache
def kernel_sets_attributes_recursively() -> bool:
    """Return whether the kernel has mount_setattr(2), which `rro` needs; runtimes list the option without a check."""
    libc = ctypes.CDLL(None, use_errno=True)
    # A call without attributes changes nothing: it fails with another error unless the kernel lacks the call.
    libc.syscall(_MOUNT_SETATTR, -1, None, 0, None, 0)
    return ctypes.get_errno() != errno.ENOSYS
