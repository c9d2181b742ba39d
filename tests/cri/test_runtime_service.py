"""Each RPC over gRPC, with the real domain and an Engine in memory."""

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri import chunks
from shim.cri.runtime_service import RuntimeService
from shim.runtime import Runtime
from tests.cgroup.trees import group_v2
from tests.cri.conftest import Serve, Served
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_state import ExecScript
from tests.pods import container_config, pod_config
from tests.stats.placed import pod_with_container


@pytest.fixture
def at(serve: Serve, rt: Runtime) -> Served:
    return serve(runtime=RuntimeService(rt))


@pytest.fixture
def sandbox(at: Served) -> str:
    return at.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=pod_config())).pod_sandbox_id


@pytest.fixture
def container(at: Served, sandbox: str) -> str:
    request = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=container_config(), sandbox_config=pod_config())
    made = at.runtime.CreateContainer(request).container_id
    at.runtime.StartContainer(pb.StartContainerRequest(container_id=made))
    return made


def test_the_node_reports_version_readiness_and_cgroup_driver(at: Served) -> None:
    version = at.runtime.Version(pb.VersionRequest())
    status = at.runtime.Status(pb.StatusRequest(verbose=True))

    assert (version.runtime_api_version, bool(version.runtime_version)) == ("v1", True)
    assert [condition.type for condition in status.status.conditions] == ["RuntimeReady", "NetworkReady"]
    assert "config" in status.info
    assert not at.runtime.Status(pb.StatusRequest()).info
    assert at.runtime.RuntimeConfig(pb.RuntimeConfigRequest()).linux.cgroup_driver == pb.CGROUPFS


def test_pod_address_ranges_are_recorded(at: Served, rt: Runtime) -> None:
    reported = pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr="10.9.0.0/24"))

    at.runtime.UpdateRuntimeConfig(pb.UpdateRuntimeConfigRequest(runtime_config=reported))
    at.runtime.UpdateRuntimeConfig(pb.UpdateRuntimeConfigRequest())

    assert rt.cni.pod_cidr.ranges == ("10.9.0.0/24",)


def test_a_pod_from_run_to_remove(at: Served, sandbox: str) -> None:
    status = at.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True))
    assert (status.status.id, status.status.state) == (sandbox, pb.SANDBOX_READY)
    assert status.info
    at.runtime.UpdatePodSandboxResources(
        pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=pb.LinuxContainerResources())
    )

    at.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    [listed] = at.runtime.ListPodSandbox(pb.ListPodSandboxRequest()).items
    assert (listed.id, listed.state) == (sandbox, pb.SANDBOX_NOTREADY)

    at.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert not at.runtime.ListPodSandbox(pb.ListPodSandboxRequest()).items


def test_a_container_from_create_to_remove(at: Served, engine: FakeEngine, container: str) -> None:
    def state() -> pb.ContainerState:
        request = pb.ContainerStatusRequest(container_id=container)
        return at.runtime.ContainerStatus(request).status.state

    assert state() == pb.CONTAINER_RUNNING
    engine.script_exec(ExecScript(frames=[(1, b"out")], exit_code=7))
    ran = at.runtime.ExecSync(pb.ExecSyncRequest(container_id=container, cmd=["x"], timeout=10))
    assert (ran.stdout, ran.exit_code) == (b"out", 7)
    at.runtime.UpdateContainerResources(
        pb.UpdateContainerResourcesRequest(container_id=container, linux=pb.LinuxContainerResources(cpu_shares=512))
    )
    updated = at.runtime.ContainerStatus(pb.ContainerStatusRequest(container_id=container))
    assert updated.status.resources.linux.cpu_shares == 512

    at.runtime.StopContainer(pb.StopContainerRequest(container_id=container, timeout=1))
    assert state() == pb.CONTAINER_EXITED

    at.runtime.RemoveContainer(pb.RemoveContainerRequest(container_id=container))
    assert not at.runtime.ListContainers(pb.ListContainersRequest()).containers


def test_streaming_rpcs_return_urls(at: Served, sandbox: str, container: str) -> None:
    urls = [
        at.runtime.Exec(pb.ExecRequest(container_id=container, cmd=["x"], stdout=True)).url,
        at.runtime.Attach(pb.AttachRequest(container_id=container, stdout=True)).url,
        at.runtime.PortForward(pb.PortForwardRequest(pod_sandbox_id=sandbox, port=[80])).url,
    ]

    assert [url.rpartition("/")[0] for url in urls] == [
        f"http://127.0.0.1:1/{kind}" for kind in ("exec", "attach", "portforward")
    ]


def test_filters_are_passed_to_the_lists(at: Served, sandbox: str, container: str) -> None:
    ready = pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY))
    other = pb.PodSandboxFilter(id="ffff")
    exited = pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_EXITED))
    of_pod = pb.ContainerFilter(pod_sandbox_id=sandbox)

    assert len(at.runtime.ListPodSandbox(pb.ListPodSandboxRequest(filter=ready)).items) == 1
    assert len(at.runtime.ListPodSandbox(pb.ListPodSandboxRequest(filter=other)).items) == 0
    assert len(at.runtime.ListContainers(pb.ListContainersRequest(filter=of_pod)).containers) == 1
    assert len(at.runtime.ListContainers(pb.ListContainersRequest(filter=exited)).containers) == 0
    assert len(list(at.runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest(filter=other)))) == 0
    assert len(list(at.runtime.StreamContainers(pb.StreamContainersRequest(filter=exited)))) == 0


def test_streamed_lists_are_chunked(at: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    for name in ("a", "b", "c"):
        config = pod_config(name)
        made = at.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config)).pod_sandbox_id
        at.runtime.CreateContainer(
            pb.CreateContainerRequest(pod_sandbox_id=made, config=container_config(), sandbox_config=config)
        )

    pods = list(at.runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest()))
    containers = list(at.runtime.StreamContainers(pb.StreamContainersRequest()))

    assert [len(part.pod_sandboxes) for part in pods] == [2, 1]
    assert [len(part.containers) for part in containers] == [2, 1]
    listed = at.runtime.ListPodSandbox(pb.ListPodSandboxRequest()).items
    assert sorted(pod.id for part in pods for pod in part.pod_sandboxes) == sorted(pod.id for pod in listed)


def test_stats_and_metrics_are_returned(at: Served, rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 1)
    first, second = pod_with_container(rt, group_v2(), name="a"), pod_with_container(rt, group_v2(), name="b")
    of_first = pb.ContainerStatsFilter(pod_sandbox_id=first.sandbox)

    one = at.runtime.ContainerStats(pb.ContainerStatsRequest(container_id=first.container)).stats
    listed = at.runtime.ListContainerStats(pb.ListContainerStatsRequest(filter=of_first)).stats
    streamed = list(at.runtime.StreamContainerStats(pb.StreamContainerStatsRequest()))
    assert one.memory.working_set_bytes.value > 0
    assert [stats.attributes.id for stats in listed] == [first.container]
    assert [[stats.attributes.id for stats in part.container_stats] for part in streamed] == [
        [first.container],
        [second.container],
    ]

    pod = at.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=second.sandbox)).stats
    of_second = pb.PodSandboxStatsFilter(id=second.sandbox)
    pods = at.runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest(filter=of_second)).stats
    parts = list(at.runtime.StreamPodSandboxStats(pb.StreamPodSandboxStatsRequest()))
    assert [stats.attributes.id for stats in pod.linux.containers] == [second.container]
    assert [stats.attributes.id for stats in pods] == [second.sandbox]
    assert [len(part.pod_sandbox_stats) for part in parts] == [1, 1]

    described = at.runtime.ListMetricDescriptors(pb.ListMetricDescriptorsRequest()).descriptors
    metrics = at.runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest()).pod_metrics
    metric_parts = list(at.runtime.StreamPodSandboxMetrics(pb.StreamPodSandboxMetricsRequest()))
    assert len(described) == 56
    assert [each.pod_sandbox_id for each in metrics] == [first.sandbox, second.sandbox]
    assert [len(part.pod_sandbox_metrics) for part in metric_parts] == [1, 1]


@pytest.mark.parametrize(
    ("rpc", "request_"),
    [
        ("RunPodSandbox", pb.RunPodSandboxRequest()),
        ("StopPodSandbox", pb.StopPodSandboxRequest()),
        ("RemovePodSandbox", pb.RemovePodSandboxRequest()),
        ("PodSandboxStatus", pb.PodSandboxStatusRequest()),
        ("UpdatePodSandboxResources", pb.UpdatePodSandboxResourcesRequest()),
        ("CreateContainer", pb.CreateContainerRequest()),
        ("StartContainer", pb.StartContainerRequest()),
        ("StopContainer", pb.StopContainerRequest()),
        ("RemoveContainer", pb.RemoveContainerRequest()),
        ("ContainerStatus", pb.ContainerStatusRequest()),
        ("UpdateContainerResources", pb.UpdateContainerResourcesRequest()),
        ("ExecSync", pb.ExecSyncRequest()),
        ("Exec", pb.ExecRequest()),
        ("Attach", pb.AttachRequest()),
        ("PortForward", pb.PortForwardRequest()),
        ("ContainerStats", pb.ContainerStatsRequest()),
        ("PodSandboxStats", pb.PodSandboxStatsRequest()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_rpc_checks_its_request_first(at: Served, rpc: str, request_: object) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(at.runtime, rpc)(request_)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).endswith((" is missing", " is empty"))


def test_a_failure_of_the_domain_arrives_with_its_code(at: Served) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        at.runtime.ContainerStatus(pb.ContainerStatusRequest(container_id="ffff"))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
