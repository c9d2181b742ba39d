"""Shares a containerd-shim among containers of a pod, like containerd's CRI plugin, within the limits of that shim.

Docker starts a containerd-shim for each container, unless an annotation names a group: then the shim of the group's
first container runs the others too, and exits after the last. A pod saves a process per container, and a container
starts without waiting for a new shim.

A containerd-shim queues at most 32 exits of processes. While it waits for a runc that it has started, whose exit goes
through the same queue, it handles none. Each exit beyond 32 then costs a second, and some get lost: pods of 50
containers took minutes to end, and shims stayed behind. So groups are limited:

- A container with a private PID namespace exits after its execs, and its exit waits only for the runc that kills or
  starts it. Pause and MOST containers, a killing runc for each, and STARTS_OF_A_POD starts are 22 exits.
- In a shared PID namespace the containerd-shim runs a runc at each exit of a container to kill its execs, and handles
  no other exit meanwhile. Such a container is in no group.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import SHIM_GROUP, has_runc_shim, shim_group
from shim.engine.answers import EngineInfo
from shim.engine.connection import ApiVersion
from shim.runtime import Runtime
from shim.spec.annotations import ANNOTATIONS_API
from shim.view.records import SandboxRecord

MOST = 8
"""Containers that share the containerd-shim of their pause container; each further container has a separate one."""


def new_shim_group(
    info: EngineInfo, *, api_version: ApiVersion, namespaces: pb.NamespaceOption, runtime: str
) -> dict[str, str]:
    """Return the annotation that makes a pause container the first of a new group.

    Return {} if the pod's containers share a PID namespace, if the Engine does not pass annotations on, and for other
    runtimes than runc, whose shims may find the containers of a pod in another way.

    The group's name is random: Docker assigns the sandbox's id only at create, and a container that Docker creates late
    could have the same container name.
    """
    knows_groups = api_version >= ANNOTATIONS_API and has_runc_shim(info, runtime)
    if namespaces.pid != pb.CONTAINER or not knows_groups:
        return {}
    return {SHIM_GROUP: secrets.token_hex(16)}


@contextmanager
def joining_shim_group(
    rt: Runtime, sandbox: SandboxRecord, *, namespaces: pb.NamespaceOption, runtime: str
) -> Iterator[dict[str, str]]:
    """Yield the annotation that adds a container to the group of its pause container; create the container inside.

    Yield {} if the group is full, the container shares a PID namespace, or pause has no group: an earlier server
    created it, or the Engine has no groups. Also if Docker's default runtime has changed.

    Holds a lock of the pod until the view knows the new container, so that the group never exceeds its limit.
    """
    if not sandbox.shim_group or namespaces.pid != pb.CONTAINER or not has_runc_shim(rt.facts.info(), runtime):
        yield {}
        return
    with ExitStack() as held:
        held.enter_context(rt.locks.shim_group(sandbox.id))
        joins = _members(rt, sandbox) < MOST
        if not joins:
            held.close()
        yield {SHIM_GROUP: sandbox.shim_group} if joins else {}


def _members(rt: Runtime, sandbox: SandboxRecord) -> int:
    """Count the containers of the group that run or may be started."""
    return sum(
        container.state.phase != pb.CONTAINER_EXITED and shim_group(container.host) == sandbox.shim_group
        for container in rt.view.containers_of(sandbox.id)
    )
