"""UpdatePodSandboxResources."""

from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import SandboxCheckpoint
from shim.domain import labels
from shim.domain.errors import NotFound
from shim.hooks.pods import pod_has_been_updated, pod_is_updated
from shim.runtime import Runtime
from shim.sandbox.find import hold_sandbox


def update_pod_sandbox_resources(rt: Runtime, *, request: pb.UpdatePodSandboxResourcesRequest) -> None:
    """Record a pod's new overhead and resources in its checkpoint. Raise NotFound for an unknown id.

    Nothing is applied, because the kubelet owns the pod's cgroup and has already set it.
    """
    with hold_sandbox(rt, request.pod_sandbox_id) as record:
        if record is None:
            raise NotFound(f"no pod sandbox has the id {request.pod_sandbox_id}")
        pod_is_updated(rt, record, request=request)
        _record(rt, rt.checkpoints.get(record.id), request)
        pod_has_been_updated(rt, record)


def _record(rt: Runtime, checkpoint: SandboxCheckpoint | None, request: pb.UpdatePodSandboxResourcesRequest) -> None:
    if checkpoint is None:
        return  # a cri-dockerd pod
    config = labels.sandbox_config_from_dict(checkpoint.config)
    config.linux.overhead.CopyFrom(request.overhead)
    config.linux.resources.CopyFrom(request.resources)
    rt.checkpoints.put(replace(checkpoint, config=labels.config_as_dict(config)))
