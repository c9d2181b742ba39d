"""Linux capabilities as Docker's `CapAdd` and `CapDrop`. Pure."""

from collections.abc import Iterable

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument
from shim.engine.connection import ApiVersion
from shim.engine.versions import require_api

ALL = "ALL"

_YOUNG = frozenset({"BPF", "CHECKPOINT_RESTORE", "PERFMON"})
_YOUNG_API = (1, 42)
"""First Engine API with the capabilities of _YOUNG; older Engines give them to no container."""

# fmt: off
_KNOWN = _YOUNG | {
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH",
    "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN",
    "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE",
    "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM",
}
# fmt: on
"""capabilities(7), up to Linux 5.9."""


def docker_capabilities(wanted: pb.Capability, *, api_version: ApiVersion, field: str) -> tuple[list[str], list[str]]:
    """Return (CapAdd, CapDrop): upper case, without `CAP_`.

    A capability that is both added and dropped is dropped, like in other runtimes: in Docker the addition would win,
    even of ALL. Raise InvalidArgument for an unknown capability, Unsupported if the Engine is too old for it.
    """
    add = _names(wanted.add_capabilities, field=f"{field}.add_capabilities")
    drop = _names(wanted.drop_capabilities, field=f"{field}.drop_capabilities")
    _names(wanted.add_ambient_capabilities, field=f"{field}.add_ambient_capabilities")
    for name in sorted(_YOUNG.intersection(add)):
        require_api(api_version, needs=_YOUNG_API, what=f"{field}.add_capabilities {name}")
    if api_version < _YOUNG_API:
        drop = [name for name in drop if name not in _YOUNG]
    return [name for name in add if name not in drop], drop


def _names(spelled: Iterable[str], *, field: str) -> list[str]:
    names = []
    for index, text in enumerate(spelled):
        name = text.upper().removeprefix("CAP_")
        if name not in _KNOWN and text.upper() != ALL:
            raise InvalidArgument(f"{field}[{index}] {text!r} is not a capability")
        names.append(name)
    return names
