"""UpdatePodSandboxResources."""

from msgspec.structs import replace

from shim import labels
from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime
from shim.sandbox.find import find_sandbox


def update_pod_sandbox_resources(rt: Runtime, *, request: pb.UpdatePodSandboxResourcesRequest) -> None:
    """Record a pod's new overhead and resources in its checkpoint. NotFound for an unknown id.

    Nothing is applied: the cgroup of a pod belongs to the kubelet, which has set it already.
    """
    record = find_sandbox(rt, request.pod_sandbox_id)
    checkpoint = rt.checkpoints.get(record.id)
    if checkpoint is None:
        return  # made by another shim
    config = labels.sandbox_config_from_dict(checkpoint.config)
    config.linux.overhead.CopyFrom(request.overhead)
    config.linux.resources.CopyFrom(request.resources)
    rt.checkpoints.put(replace(checkpoint, config=labels.config_as_dict(config)))
