"""The user that a pod's or container's processes run as. Pure.

The server resolves users and groups from the image's passwd and group files, and Docker gets numbers. Docker cannot
follow the CRI's rules: it drops a user's memberships if and only if a group is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.domain.passwd import GROUP, MAX_ID, PASSWD, Accounts, ImageAccounts, User, id_from_text, is_number

Context = pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext

_FIELD = "config.linux.security_context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The numeric ids of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """All supplementary groups including the primary group; ascending, like in /proc/PID/status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerUser:
    """An identity in Docker's form."""

    user: str = ""
    """`User`: `uid:gid`; "" for the image's user."""
    group_add: tuple[str, ...] = ()
    """`GroupAdd`."""


def asks_for_identity(context: pb.LinuxSandboxSecurityContext) -> bool:
    """Return whether a pod asks for another user of its pause container than the image's default."""
    return bool(
        context.HasField("run_as_user")
        or context.supplemental_groups
        or context.supplemental_groups_policy == pb.Strict
    )


def identity(context: Context, found: ImageAccounts, *, image: str) -> Identity:
    """Resolve the requested identity in an image; messages call it `image`, which includes the field that names it.

    The image's `USER` is the default. A uid without an entry in passwd has gid 0 and no memberships. Raise
    InvalidArgument or FailedPrecondition for an unknown user or group, and for a number that is too large.
    """
    accounts = found.accounts
    uid, user, own_group = _user(context, found, image=image)
    gid = user.gid if user else 0
    if context.HasField("run_as_group"):
        gid = context.run_as_group.value
    elif own_group:
        gid = _image_group(own_group, accounts, image=image)
    groups = {gid, *context.supplemental_groups}
    if user is not None and context.supplemental_groups_policy == pb.Merge:
        groups.update(accounts.memberships(user))
    if impostors := accounts.impostors & groups:
        # Docker and runc look up even a number as a group's name first.
        number = min(impostors)
        raise FailedPrecondition(f"{GROUP} of {image} gives the group named {number} another gid")
    return Identity(uid=uid, gid=gid, groups=tuple(sorted(groups)))


def docker_user(identity: Identity) -> DockerUser:
    """Convert an identity to Docker's fields.

    For a user of the form `uid:gid`, Docker looks up no memberships, and adds the primary group to the supplementary
    groups itself (since Engine 20.10.18).
    """
    return DockerUser(
        user=f"{identity.uid}:{identity.gid}",
        group_add=tuple(str(gid) for gid in identity.groups if gid != identity.gid),
    )


def container_user(user: str, group_add: Sequence[str] | None) -> pb.ContainerUser | None:
    """Read back the user of a container from Docker's `User` and `GroupAdd`.

    Return None unless all are numeric: the names of a cri-dockerd pod are resolved only by Docker at the start.
    """
    uid, _, gid = user.partition(":")
    numbers = [id_from_text(text) if is_number(text) else None for text in (uid, gid, *(group_add or ()))]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    groups = sorted(set(known[1:]))
    return pb.ContainerUser(linux=pb.LinuxContainerUser(uid=known[0], gid=known[1], supplemental_groups=groups))


def _user(context: Context, found: ImageAccounts, *, image: str) -> tuple[int, User | None, str]:
    """Return the uid, its entry in passwd, and the group of the image's `USER`; "" unless the user comes from there."""
    if context.HasField("run_as_user"):
        uid = context.run_as_user.value
        return uid, found.accounts.user_of(uid), ""
    if isinstance(context, pb.LinuxContainerSecurityContext) and context.run_as_username:
        return *_asked_user(context.run_as_username, found.accounts, image=image), ""
    name, _, group = found.default_user.partition(":")
    return *_image_user(name or "0", found.accounts, image=image), group


def _asked_user(name: str, accounts: Accounts, *, image: str) -> tuple[int, User | None]:
    uid = _uid(name, accounts)
    if uid is None:
        reason = f"is above {MAX_ID}" if is_number(name) else f"is not in {PASSWD} of {image}"
        raise InvalidArgument(f"{_FIELD}.run_as_username: user {name!r} {reason}")
    return uid, accounts.user_of(uid if is_number(name) else name)


def _image_user(name: str, accounts: Accounts, *, image: str) -> tuple[int, User | None]:
    uid = _uid(name, accounts)
    if uid is None:
        reason = f"which is above {MAX_ID}" if is_number(name) else f"who is not in its {PASSWD}"
        raise FailedPrecondition(f"{image} runs as user {name!r}, {reason}")
    return uid, accounts.user_of(uid if is_number(name) else name)


def _image_group(name: str, accounts: Accounts, *, image: str) -> int:
    if is_number(name):
        gid, reason = id_from_text(name), f"which is above {MAX_ID}"
    else:
        group = accounts.group_named(name)
        gid, reason = (group.gid if group else None), f"which is not in its {GROUP}"
    if gid is None:
        raise FailedPrecondition(f"{image} runs with group {name!r}, {reason}")
    return gid


def _uid(name: str, accounts: Accounts) -> int | None:
    if is_number(name):
        return id_from_text(name)
    user = accounts.user_of(name)
    return None if user is None else user.uid
