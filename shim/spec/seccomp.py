"""Seccomp of pods and containers as Docker's `SecurityOpt`.

Docker takes the text of a profile, not its path. So the server reads the profile at create (`shim.spec.host_calls`),
and refuses a text that is not a profile: a container without its profile would be weaker than requested.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument

FIELD = "config.linux.security_context.seccomp"
LOCALHOST = "localhost/"

MAX_PROFILE = 1 << 20
"""Bytes; profiles have some 20 KiB. Docker stores the text with the container and returns it in each inspect."""


class _Profile(msgspec.Struct, rename="camel"):
    """The part of a profile that the server checks. Docker or runc fail the start for any other defect."""

    default_action: Annotated[str, msgspec.Meta(min_length=1)]
    """Without it, Docker would apply no seccomp at all."""


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
