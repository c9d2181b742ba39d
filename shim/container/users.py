"""Who a pod's or container's first process runs as, in Docker's `User` and `GroupAdd`."""

from collections.abc import Iterable

from shim.api.v1 import api_pb2 as pb

Context = pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext


def docker_user(context: Context) -> str:
    """`uid`, `uid:gid`, `name` or `name:gid`; empty for the image's own user.

    That a group comes with a user is checked at the door.
    """
    user = str(context.run_as_user.value) if context.HasField("run_as_user") else ""
    if isinstance(context, pb.LinuxContainerSecurityContext) and context.run_as_username:
        user = context.run_as_username
    if user and context.HasField("run_as_group"):
        return f"{user}:{context.run_as_group.value}"
    return user


def docker_groups(groups: Iterable[int]) -> list[str]:
    """Supplemental groups as Docker takes them."""
    return [str(group) for group in groups]
