import json
from dataclasses import replace

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.store import CheckpointStore
from shim.domain import labels
from shim.domain.errors import InvalidArgument, NotFound
from shim.runtime import Runtime
from shim.sandbox.list import list_pod_sandbox
from shim.sandbox.status import pod_sandbox_status
from shim.sandbox.update import update_pod_sandbox_resources
from tests.checkpoint.samples import CONNECTED
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running


def test_the_status_agrees_with_the_list_and_has_the_containers(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    answer = pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False)
    (row,) = list_pod_sandbox(rt, filter=pb.PodSandboxFilter())
    for field in ("id", "metadata", "state", "created_at", "labels", "annotations", "runtime_handler"):
        assert getattr(answer.status, field) == getattr(row, field), field
    assert answer.status.linux.namespaces.options.network == pb.NODE
    assert answer.status.HasField("network")
    assert answer.status.network.ip == ""  # the kubelet knows the address of the node
    assert [status.id for status in answer.containers_statuses] == [container]
    assert answer.timestamp > answer.status.created_at
    assert dict(answer.info) == {}


def test_containers_are_sorted_newest_first(rt: Runtime, engine: FakeEngine) -> None:
    """A kubelet with EventedPLEG uses the first container of each name, and restarts it if it has ended."""
    sandbox = ready_pod(rt)
    made = []
    for attempt in range(3):
        for name in ("app", "side"):
            metadata = pb.ContainerMetadata(name=name, attempt=attempt)
            container = running(rt, sandbox, name, metadata=metadata, log_path=f"{name}/{attempt}.log")
            made.append(container)
            if attempt < 2:
                engine.exit_container(container, exit_code=1)
                rt.view.refresh_container(container)
    answer = pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False)
    assert [status.id for status in answer.containers_statuses] == made[::-1]
    assert [status.state for status in answer.containers_statuses[:2]] == [pb.CONTAINER_RUNNING] * 2


def test_verbose_has_the_pid(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    info = json.loads(pod_sandbox_status(rt, sandbox_id=sandbox, verbose=True).info["info"])
    assert info["pid"] == rt.view.sandbox(sandbox).state.pid


def test_an_unreadable_cni_result_hides_only_the_address(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    checkpoint = rt.checkpoints.get(sandbox)
    assert checkpoint is not None
    rt.checkpoints.put(msgspec.structs.replace(checkpoint, network=CONNECTED.network))

    status = pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False).status
    assert status.state == pb.SANDBOX_READY
    assert status.network.ip == ""


@pytest.mark.parametrize(("network_mode", "reported"), [("bridge", False), ("host", True)])
def test_the_unknown_network_of_a_cri_dockerd_pod_is_left_out(
    rt: Runtime, engine: FakeEngine, network_mode: str, *, reported: bool
) -> None:
    """A kubelet ends a pod whose address is empty."""
    body = {
        "Image": BUSYBOX,
        "Labels": {labels.TYPE: labels.TYPE_SANDBOX},
        "HostConfig": {"NetworkMode": network_mode},
    }
    sandbox = engine.create_container(name="k8s_POD_old_shop_uid-1_0", body=body)
    engine.start_container(sandbox)
    rt.view.refresh_container(sandbox)

    status = pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False).status
    assert status.state == pb.SANDBOX_READY
    assert status.HasField("network") == reported


def test_the_status_of_an_unknown_sandbox_is_not_found(rt: Runtime) -> None:
    with pytest.raises(NotFound, match="f" * 64):
        pod_sandbox_status(rt, sandbox_id="f" * 64, verbose=False)
    with pytest.raises(InvalidArgument):
        pod_sandbox_status(rt, sandbox_id="", verbose=False)


def test_verbose_has_the_resources_of_the_last_update(rt: Runtime) -> None:
    context = pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE))
    first, second = pb.LinuxContainerResources(cpu_shares=7), pb.LinuxContainerResources(cpu_shares=9)
    sandbox = ready_pod(rt, linux=pb.LinuxPodSandboxConfig(security_context=context, overhead=first, resources=first))

    def reported() -> tuple[dict[str, str], dict[str, str]]:
        info = json.loads(pod_sandbox_status(rt, sandbox_id=sandbox, verbose=True).info["info"])
        return info["overhead"], info["resources"]

    assert reported() == ({"cpu_shares": "7"}, {"cpu_shares": "7"})
    request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, overhead=first, resources=second)
    update_pod_sandbox_resources(rt, request=request)
    after_a_restart = replace(rt, checkpoints=CheckpointStore(rt.config.root_directory / "sandboxes"))
    assert reported() == ({"cpu_shares": "7"}, {"cpu_shares": "9"})
    rt = after_a_restart
    assert reported() == ({"cpu_shares": "7"}, {"cpu_shares": "9"})
