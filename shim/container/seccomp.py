"""Seccomp of pods and containers as Docker's `SecurityOpt`.

Docker wants a profile's text, not its path, and looks at it only when the container starts. So it is read and checked
here, at create; whatever is wrong with it is an error, since a container without it would be a weaker one.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.errors import FailedPrecondition, InvalidArgument

LOCALHOST = "localhost/"

MAX_PROFILE = 1 << 20
"""Bytes; profiles have some 20 KiB. Docker keeps the text with the container and gives it back with each inspect."""

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


class _Rule(msgspec.Struct, rename="camel"):
    action: _Action
    names: list[str] | None = None


class _Profile(msgspec.Struct, rename="camel"):
    """What is checked of a profile; Docker and runc check the rest, and start no container that fails that."""

    default_action: _Action
    """To Docker an empty one means no seccomp at all."""
    syscalls: list[_Rule] | None = None


def seccomp_options(
    profile: pb.SecurityProfile | None, *, deprecated: str, daemon_profile: str, field: str
) -> list[str]:
    """`seccomp=...`, or nothing for the daemon's default. `profile` wins over the deprecated string.

    `daemon_profile` is what `seccomp_of_daemon` gives. A profile of the administrator's is the runtime's default; a
    daemon that has been told to confine nothing is not taken at its word, and one that cannot is no place for the pod.
    """
    kind, reference = profile_of(profile, deprecated=deprecated, field=field)
    if kind == pb.SecurityProfile.Unconfined:
        return ["seccomp=unconfined"]
    if not daemon_profile:
        raise FailedPrecondition(f"{field}: Docker has no seccomp on this node")
    if kind == pb.SecurityProfile.Localhost:
        return [f"seccomp={_localhost_profile(reference, field=field)}"]
    # Engines that know these words (23.0 and later) take one of them. Said aloud, it holds also for a daemon that has
    # been restarted with another default a moment ago.
    return ["seccomp=builtin"] if daemon_profile in {"builtin", "unconfined"} else []


def seccomp_of_daemon(security_options: Iterable[str]) -> str:
    """Read from the daemon's `info` the profile it uses by itself; empty where it has no seccomp.

    `default` or `builtin` is Docker's own; else it is `unconfined`, or the path of the administrator's.
    """
    for option in security_options:
        parts = dict(part.partition("=")[::2] for part in option.split(","))
        if parts.get("name") == "seccomp":
            return parts.get("profile", "default")
    return ""


def profile_of(
    profile: pb.SecurityProfile | None, *, deprecated: str, field: str
) -> "tuple[pb.SecurityProfile.ProfileType, str]":
    """Give kind and reference of a profile, of the deprecated string where there is no other."""
    if profile is not None:
        return profile.profile_type, profile.localhost_ref
    if deprecated in {"", "unconfined"}:
        return pb.SecurityProfile.Unconfined, ""
    if deprecated in {"runtime/default", "docker/default"}:
        return pb.SecurityProfile.RuntimeDefault, ""
    if deprecated.startswith(LOCALHOST):
        return pb.SecurityProfile.Localhost, deprecated.removeprefix(LOCALHOST)
    raise InvalidArgument(f"{field}: unknown profile {deprecated!r}")


def _localhost_profile(reference: str, *, field: str) -> str:
    path = Path(reference.removeprefix(LOCALHOST))
    if not path.is_absolute():
        raise InvalidArgument(f"{field}: seccomp profile path {str(path)!r} is not absolute")
    try:
        text = _read_regular(path)
    except OSError as error:
        raise FailedPrecondition(f"{field}: seccomp profile {path}: {error.strerror}") from error
    try:
        profile = msgspec.json.decode(text)
        msgspec.convert(profile, _Profile)
        return msgspec.json.encode(profile).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidArgument(f"{field}: seccomp profile {path} is not valid: {error}") from error


def _read_regular(path: Path) -> bytes:
    """Read a file of bounded size. One that is no regular file could block the open, or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_PROFILE + 1)
    finally:
        os.close(descriptor)
    if len(text) > MAX_PROFILE:
        raise OSError(errno.EFBIG, f"more than {MAX_PROFILE} bytes")
    return text
