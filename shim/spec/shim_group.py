"""One containerd-shim for the containers of a pod, as containerd's own CRI has it, as far as that shim can end them.

Docker has one for each container, unless an annotation names a group: the shim that the first container of a group
started is then asked to run the others. It ends after the last of them. So a pod has one process less per container,
and none is started for a container while its start is waited for.

A shim holds 32 ends of processes that it has not worked through. While it waits for a runc of its own, whose end is one
of them, it works through none. Each one too many costs a second then, and some get lost: pods of 50 containers took
minutes to end, and shims stayed behind. So a group is bounded:

- A container with a PID namespace of its own ends after its execs, and its end waits for no more than the runc that
  kills or starts it. Pause and MOST containers, a runc that kills each, and STARTS_OF_A_POD that start are 22 ends.
- In a shared PID namespace the shim runs a runc at each end of a container, to kill the execs that are left, and works
  through no other end meanwhile. Such a container has a shim of its own.
"""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from shim.api.v1 import api_pb2 as pb
from shim.engine.runc import SHIM_GROUP, has_runc_shim, shim_group
from shim.runtime import Runtime
from shim.spec.annotations import ANNOTATIONS_API
from shim.view.records import SandboxRecord

MOST = 8
"""Containers that share the shim of their pause container; each further one has its own."""


def new_shim_group(rt: Runtime, *, namespaces: pb.NamespaceOption, runtime: str) -> dict[str, str]:
    """Return the annotation by which a pause container is the first of a group that nothing else is in.

    None for a pod whose containers share a PID namespace; on an Engine that does not pass annotations on; and for
    another runtime than runc: it may have a shim of its own, which has its own way to find the containers of a pod.

    Not by the sandbox's id, which Docker gives only with the container, nor by the name, which a container that Docker
    makes late can have as well.
    """
    knows_groups = rt.engine.api_version >= ANNOTATIONS_API and has_runc_shim(rt.facts.info(), runtime)
    if namespaces.pid != pb.CONTAINER or not knows_groups:
        return {}
    return {SHIM_GROUP: secrets.token_hex(16)}


@contextmanager
def joining_shim_group(
    rt: Runtime, sandbox: SandboxRecord, *, namespaces: pb.NamespaceOption, runtime: str
) -> Iterator[dict[str, str]]:
    """Yield the annotation by which a container joins the shim of its pause container; create the container inside.

    None where the group is full, or the container shares a PID namespace. None where pause has no group for the pod: an
    earlier server made it, or the Engine cannot. Nor where Docker's default runtime has become another one.

    One container of a pod at a time, until the view knows it: else a group would take more than it may.
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
    """Count the containers that the shim runs, or may be asked to run. One that has ended is none of its processes."""
    return sum(
        container.state.phase != pb.CONTAINER_EXITED and shim_group(container.host) == sandbox.shim_group
        for container in rt.view.containers_of(sandbox.id)
    )
