"""One containerd-shim for all containers of a pod, as containerd's own CRI has it.

Docker has one for each container, unless an annotation names a group: the shim that the first container of a group
started is then asked to run the others. It ends after the last of them. So a pod has one process less per container,
and none is started for a container while its start is waited for.
"""

import secrets

from shim.engine.runc import SHIM_GROUP, has_runc_shim
from shim.runtime import Runtime
from shim.spec.annotations import ANNOTATIONS_API
from shim.view.records import SandboxRecord


def new_shim_group(rt: Runtime, *, runtime: str) -> dict[str, str]:
    """Return the annotation by which a pause container is the first of a group that nothing else is in.

    None on an Engine that does not pass annotations on, and for another runtime than runc: it may have a shim of its
    own, which has its own way to find the containers of a pod.

    Not by the sandbox's id, which Docker gives only with the container, nor by the name, which a container that Docker
    makes late can have as well.
    """
    if rt.engine.api_version < ANNOTATIONS_API or not has_runc_shim(rt.facts.info(), runtime):
        return {}
    return {SHIM_GROUP: secrets.token_hex(16)}


def shim_group_of(rt: Runtime, sandbox: SandboxRecord, *, runtime: str) -> dict[str, str]:
    """Return the annotation by which a container joins the shim of its pause container.

    None where that has none for the pod: an earlier server made it, or the Engine cannot. Nor where Docker's default
    runtime has become another one.
    """
    if not sandbox.shim_group or not has_runc_shim(rt.facts.info(), runtime):
        return {}
    return {SHIM_GROUP: sandbox.shim_group}
