"""AppArmor, SELinux and privileges of pods and containers as Docker's `SecurityOpt`.

A setting that Docker cannot honour is an error: a container must never be weaker than requested.
"""

from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.base.proc import lines
from shim.domain.errors import FailedPrecondition, Unsupported
from shim.spec.seccomp import LOCALHOST, profile_of

APPARMOR_PROFILES = Path("/sys/kernel/security/apparmor/profiles")


def apparmor_options(
    profile: pb.SecurityProfile | None, *, deprecated: str, field: str, privileged: bool = False
) -> list[str]:
    """Return `apparmor=...`, or [] for Docker's default profile. `profile` wins over the `deprecated` string.

    Docker always runs privileged containers unconfined: raise Unsupported if they ask for a profile of the node.
    """
    if profile is None and not deprecated:
        return []
    kind, reference = profile_of(profile, deprecated=deprecated, field=field)
    name = reference.removeprefix(LOCALHOST)
    if privileged and kind == pb.SecurityProfile.Localhost:
        raise Unsupported(f"{field}: Docker cannot confine a privileged container by AppArmor profile {name!r}")
    if privileged or kind == pb.SecurityProfile.RuntimeDefault:
        return []
    if kind == pb.SecurityProfile.Unconfined:
        return ["apparmor=unconfined"]
    _require_loaded(name, field=field)
    return [f"apparmor={name}"]


def selinux_options(options: pb.SELinuxOption) -> list[str]:
    """Return `label=user:...` and so on for each part that is set. Docker ignores them if SELinux is off."""
    parts = {"user": options.user, "role": options.role, "type": options.type, "level": options.level}
    return [f"label={name}:{value}" for name, value in parts.items() if value]


def no_new_privileges_option(*, no_new_privs: bool) -> str:
    """Return the option, explicit even for false, since the daemon may have another default."""
    return f"no-new-privileges={'true' if no_new_privs else 'false'}"


def _require_loaded(name: str, *, field: str) -> None:
    """Raise FailedPrecondition for a profile that is not loaded: Docker fails at start, or never if AppArmor is off."""
    try:
        loaded = lines(APPARMOR_PROFILES.read_bytes())
    except OSError as error:
        reason = "AppArmor is off on this node"
        raise FailedPrecondition(f"{field}: AppArmor profile {name!r} is not loaded: {reason}") from error
    if name.encode() not in {line.rpartition(b" (")[0] for line in loaded}:
        raise FailedPrecondition(f"{field}: AppArmor profile {name!r} is not loaded on this node")
