"""Security fields of pods and containers as Docker's `SecurityOpt`. Pure, but for reading a seccomp profile.

What cannot be honoured is refused by name: a container weaker than asked for is never made.
"""

from pathlib import Path

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.errors import FailedPrecondition, InvalidArgument

LOCALHOST = "localhost/"


def seccomp_options(profile: pb.SecurityProfile | None, *, deprecated: str, field: str) -> list[str]:
    """`seccomp=...`, or nothing for Docker's default profile. `profile` wins over the deprecated string."""
    kind, reference = _profile(profile, deprecated=deprecated, field=field)
    if kind == pb.SecurityProfile.RuntimeDefault:
        return []
    if kind == pb.SecurityProfile.Unconfined:
        return ["seccomp=unconfined"]
    return [f"seccomp={_seccomp_json(reference, field=field)}"]


def apparmor_options(profile: pb.SecurityProfile | None, *, deprecated: str, field: str) -> list[str]:
    """`apparmor=...`, or nothing for Docker's default profile. `profile` wins over the deprecated string."""
    if profile is None and not deprecated:
        return []
    kind, reference = _profile(profile, deprecated=deprecated, field=field)
    if kind == pb.SecurityProfile.RuntimeDefault:
        return []
    if kind == pb.SecurityProfile.Unconfined:
        return ["apparmor=unconfined"]
    name = reference.removeprefix(LOCALHOST)
    if name not in loaded_apparmor_profiles():
        raise FailedPrecondition(f"{field}: AppArmor profile {name!r} is not loaded on this node")
    return [f"apparmor={name}"]


def loaded_apparmor_profiles() -> frozenset[str]:
    """Names of the profiles the kernel knows; empty where AppArmor is off. Docker itself fails only at start."""
    try:
        lines = Path("/sys/kernel/security/apparmor/profiles").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.rpartition(" (")[0] for line in lines)


def selinux_options(options: pb.SELinuxOption) -> list[str]:
    """`label=user:...` and so on, for each part that is set."""
    parts = {"user": options.user, "role": options.role, "type": options.type, "level": options.level}
    return [f"label={name}:{value}" for name, value in parts.items() if value]


def no_new_privileges_option(no_new_privs: bool) -> str:
    """Say it both ways, since the daemon may have a default of its own."""
    return f"no-new-privileges={'true' if no_new_privs else 'false'}"


def _profile(
    profile: pb.SecurityProfile | None, *, deprecated: str, field: str
) -> "tuple[pb.SecurityProfile.ProfileType, str]":
    if profile is not None:
        return profile.profile_type, profile.localhost_ref
    if deprecated in {"", "unconfined"}:
        return pb.SecurityProfile.Unconfined, ""
    if deprecated in {"runtime/default", "docker/default"}:
        return pb.SecurityProfile.RuntimeDefault, ""
    if deprecated.startswith(LOCALHOST):
        return pb.SecurityProfile.Localhost, deprecated.removeprefix(LOCALHOST)
    raise InvalidArgument(f"{field}: unknown profile {deprecated!r}")


def _seccomp_json(reference: str, *, field: str) -> str:
    """Docker wants the profile itself, not its path; an unreadable one must fail here rather than be left out."""
    path = Path(reference.removeprefix(LOCALHOST))
    if not path.is_absolute():
        raise InvalidArgument(f"{field}: seccomp profile path {str(path)!r} is not absolute")
    try:
        profile = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise FailedPrecondition(f"{field}: seccomp profile {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{field}: seccomp profile {path} is not JSON: {error}") from error
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise InvalidArgument(f"{field}: seccomp profile {path} has no defaultAction")
    return msgspec.json.encode(profile).decode()
