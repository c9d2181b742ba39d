import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.domain.errors import NotFound
from shim.runtime import Runtime
from shim.sandbox.update import update_pod_sandbox_resources
from tests.pods import ready_pod


def test_new_resources_are_recorded(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    overhead = pb.LinuxContainerResources(cpu_shares=7)
    request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, overhead=overhead)
    update_pod_sandbox_resources(rt, request=request)
    checkpoint = rt.checkpoints.get(sandbox)
    assert checkpoint is not None
    assert checkpoint.ready
    assert labels.sandbox_config_from_dict(checkpoint.config).linux.overhead == overhead


def test_updating_an_unknown_sandbox_is_not_found(rt: Runtime) -> None:
    with pytest.raises(NotFound, match="f" * 64):
        update_pod_sandbox_resources(rt, request=pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id="f" * 64))
