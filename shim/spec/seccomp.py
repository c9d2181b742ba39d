"""Seccomp of pods and containers as Docker's `SecurityOpt`.

Docker takes the text of a profile, not its path, and checks it only when the container starts. So the server reads the
profile at create (`shim.spec.host_calls`) and checks it here. Any defect is an error: a container without its profile
would be weaker than requested.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument

FIELD = "config.linux.security_context.seccomp"
LOCALHOST = "localhost/"

MAX_PROFILE = 1 << 20
"""Bytes; profiles have some 20 KiB. Docker stores the text with the container and returns it in each inspect."""

_Action = Literal[
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_ERRNO",
    "SCMP_ACT_KILL",
    "SCMP_ACT_KILL_PROCESS",
    "SCMP_ACT_KILL_THREAD",
    "SCMP_ACT_LOG",
    "SCMP_ACT_NOTIFY",
    "SCMP_ACT_TRACE",
    "SCMP_ACT_TRAP",
]

_Operator = Literal[
    "SCMP_CMP_EQ",
    "SCMP_CMP_GE",
    "SCMP_CMP_GT",
    "SCMP_CMP_LE",
    "SCMP_CMP_LT",
    "SCMP_CMP_MASKED_EQ",
    "SCMP_CMP_NE",
]

_Architecture = Literal[
    "SCMP_ARCH_AARCH64",
    "SCMP_ARCH_ARM",
    "SCMP_ARCH_LOONGARCH64",
    "SCMP_ARCH_M68K",
    "SCMP_ARCH_MIPS",
    "SCMP_ARCH_MIPS64",
    "SCMP_ARCH_MIPS64N32",
    "SCMP_ARCH_MIPSEL",
    "SCMP_ARCH_MIPSEL64",
    "SCMP_ARCH_MIPSEL64N32",
    "SCMP_ARCH_PARISC",
    "SCMP_ARCH_PARISC64",
    "SCMP_ARCH_PPC",
    "SCMP_ARCH_PPC64",
    "SCMP_ARCH_PPC64LE",
    "SCMP_ARCH_RISCV64",
    "SCMP_ARCH_S390",
    "SCMP_ARCH_S390X",
    "SCMP_ARCH_SH",
    "SCMP_ARCH_SHEB",
    "SCMP_ARCH_X32",
    "SCMP_ARCH_X86",
    "SCMP_ARCH_X86_64",
]

_Flag = Literal[
    "SECCOMP_FILTER_FLAG_LOG",
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
    "SECCOMP_FILTER_FLAG_TSYNC",
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
]

_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
_KernelVersion = Annotated[str, msgspec.Meta(pattern=r"\A([0-9]+\.[0-9]+)?\Z")]


class _Argument(msgspec.Struct, rename="camel"):
    op: _Operator
    index: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    value: _Unsigned = 0
    value_two: _Unsigned = 0

    def __post_init__(self) -> None:
        if max(self.value, self.value_two) >> 64:
            raise ValueError("value and valueTwo have 64 bits")


class _Filter(msgspec.Struct, rename="camel"):
    """A condition under which Docker includes a rule."""

    arches: list[str] | None = None
    caps: list[str] | None = None
    min_kernel: _KernelVersion | None = None


class _Rule(msgspec.Struct, rename="camel"):
    action: _Action
    name: str | None = None
    names: list[str] | None = None
    args: list[_Argument] | None = None
    errno_ret: _Unsigned | None = None
    comment: str | None = None
    includes: _Filter | None = None
    excludes: _Filter | None = None

    def __post_init__(self) -> None:
        if self.name and self.names:
            raise ValueError("name and names exclude each other")


class _ArchitectureFamily(msgspec.Struct, rename="camel"):
    architecture: _Architecture
    sub_architectures: list[_Architecture] | None = None


class _Profile(msgspec.Struct, rename="camel"):
    """A profile in Docker's dialect of the OCI format. Unknown keys are accepted: Docker ignores them.

    The flags come from the OCI runtime specification, except TSYNC, which runc accepts too.
    """

    default_action: _Action
    """Required: without it, Docker would apply no seccomp at all."""
    default_errno_ret: _Unsigned | None = None
    architectures: list[_Architecture] | None = None
    arch_map: list[_ArchitectureFamily] | None = None
    flags: list[_Flag] | None = None
    syscalls: list[_Rule] | None = None

    def __post_init__(self) -> None:
        if self.architectures and self.arch_map:
            raise ValueError("architectures and archMap exclude each other")


def seccomp_options(
    profile: pb.SecurityProfile | None,
    *,
    deprecated: str,
    daemon_profile: str,
    localhost_profile: bytes,
    field: str,
    builtin: str = "",
) -> list[str]:
    """Return `seccomp=...`, or [] for the daemon's default. `profile` wins over the `deprecated` string.

    `daemon_profile` is the result of `seccomp_of_daemon`. The administrator's profile counts as the runtime's default;
    `unconfined` is overridden by Docker's profile; raise FailedPrecondition if the daemon has no seccomp.
    `localhost_profile` is the content of the file at `localhost_path`. `builtin` is a profile that replaces Docker's;
    "" to keep Docker's.
    """
    kind, reference = profile_of(profile, deprecated=deprecated, field=field)
    if kind == pb.SecurityProfile.Unconfined:
        return ["seccomp=unconfined"]
    if not daemon_profile:
        raise FailedPrecondition(f"{field}: Docker has no seccomp on this node")
    if kind == pb.SecurityProfile.Localhost:
        return [f"seccomp={_localhost_profile(reference, localhost_profile, field=field)}"]
    if builtin and daemon_profile in {"default", "builtin", "unconfined"}:
        return [f"seccomp={builtin}"]
    # Engines that report these words (23.0 and later) also accept `builtin`. Being explicit, it holds even if the
    # daemon has just been restarted with another default.
    return ["seccomp=builtin"] if daemon_profile in {"builtin", "unconfined"} else []


def seccomp_of_daemon(security_options: Iterable[str]) -> str:
    """Return the daemon's default profile from its `info`; "" if it has no seccomp.

    `default` or `builtin` is Docker's profile; other values are `unconfined`, or the path of the administrator's.
    """
    for option in security_options:
        parts = dict(part.partition("=")[::2] for part in option.split(","))
        if parts.get("name") == "seccomp":
            return parts.get("profile", "default")
    return ""


def profile_of(
    profile: pb.SecurityProfile | None, *, deprecated: str, field: str
) -> "tuple[pb.SecurityProfile.ProfileType, str]":
    """Return kind and reference of `profile`, or of the `deprecated` string if it is None."""
    if profile is not None:
        return profile.profile_type, profile.localhost_ref
    if deprecated in {"", "unconfined"}:
        return pb.SecurityProfile.Unconfined, ""
    if deprecated in {"runtime/default", "docker/default"}:
        return pb.SecurityProfile.RuntimeDefault, ""
    if deprecated.startswith(LOCALHOST):
        return pb.SecurityProfile.Localhost, deprecated.removeprefix(LOCALHOST)
    raise InvalidArgument(f"{field}: unknown profile {deprecated!r}")


def localhost_path(profile: pb.SecurityProfile | None, *, deprecated: str, field: str) -> Path | None:
    """Return the path of a localhost profile; None for other kinds."""
    kind, reference = profile_of(profile, deprecated=deprecated, field=field)
    return _path(reference, field=field) if kind == pb.SecurityProfile.Localhost else None


def _path(reference: str, *, field: str) -> Path:
    path = Path(reference.removeprefix(LOCALHOST))
    if not path.is_absolute():
        raise InvalidArgument(f"{field}: seccomp profile path {str(path)!r} is not absolute")
    return path


def _localhost_profile(reference: str, text: bytes, *, field: str) -> str:
    path = _path(reference, field=field)
    try:
        profile = msgspec.json.decode(text)
        msgspec.convert(profile, _Profile)
        return msgspec.json.encode(profile).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidArgument(f"{field}: seccomp profile {path} is not valid: {error}") from error
