import shutil
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.places import Group
from shim.domain.errors import InvalidArgument, NotFound
from shim.runtime import Runtime
from shim.sandbox.stop import stop_pod_sandbox
from shim.stats import sandboxes
from shim.stats.network import interfaces_from_net_dev
from shim.stats.sandboxes import list_pod_sandbox_stats, pod_sandbox_stats
from shim.stats_cache import Point
from tests.cgroup.removal import remove_group
from tests.cgroup.trees import DATA, group_v1, group_v2, pod_group
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod
from tests.stats.kernel import NET_DEV
from tests.stats.placed import VERSIONS, pod_with_container, without_docker


def listed(rt: Runtime, **wanted: Any) -> list[pb.PodSandboxStats]:
    return list_pod_sandbox_stats(rt, filter=pb.PodSandboxStatsFilter(**wanted))


@VERSIONS
def test_stats_come_from_the_pods_group(rt: Runtime, group: Group) -> None:
    pod = pod_with_container(rt, group)
    stats = pod_sandbox_stats(rt, sandbox_id=pod.sandbox)
    around = pod_group(group)
    cpu, memory, pids, psi = around.cpu(), around.memory(), around.pids(), around.io_psi()

    assert cpu is not None
    assert memory is not None
    assert pids is not None
    assert psi is not None
    assert (stats.attributes.id, stats.attributes.metadata.name) == (pod.sandbox, "web")
    assert stats.attributes.labels == {"app": "web"}
    assert stats.attributes.annotations == {"note": "about web"}
    assert stats.linux.cpu.usage_core_nano_seconds.value == cpu.usage
    assert stats.linux.cpu.psi.Some.Total > 0
    assert stats.linux.memory.working_set_bytes.value == memory.working_set
    assert stats.linux.memory.rss_bytes.value == memory.rss
    assert stats.linux.process.process_count.value == pids.current
    assert stats.linux.io.psi.Some.Total == psi.some.total
    assert [stats.attributes.id for stats in stats.linux.containers] == [pod.container]
    assert stats.linux.containers[0].memory.usage_bytes.value > 0


def test_pod_without_a_group_adds_up_its_containers(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2(), cgroup_parent="")
    one = group_v2().memory()

    linux = pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux

    assert one is not None
    assert one.rss is not None
    assert linux.cpu.usage_core_nano_seconds.value == 2 * 9_214_533_000
    assert (linux.memory.usage_bytes.value, linux.memory.rss_bytes.value) == (2 * one.usage, 2 * one.rss)
    assert linux.process.process_count.value == 14
    assert not linux.HasField("io")
    assert not linux.memory.HasField("available_bytes")


def test_host_network_is_not_reported_for_a_pod(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())

    assert not pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux.HasField("network")


def test_network_of_a_pod_is_reported(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.view.sandbox(pod.sandbox).config.linux.security_context.namespace_options.network = pb.POD
    monkeypatch.setattr(sandboxes, "interfaces_of", lambda _pid: interfaces_from_net_dev(NET_DEV))

    network = pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux.network

    assert [interface.name for interface in network.interfaces] == ["net1", "eth0"]
    assert (network.default_interface.name, network.default_interface.rx_bytes.value) == ("eth0", 4_294_967_296_001)
    assert (network.interfaces[1].tx_bytes.value, network.interfaces[1].tx_errors.value) == (222, 5)
    assert network.timestamp > 0


def test_pod_without_an_interface_reports_no_network(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet crashes if it gets a network without a default interface."""
    pod = pod_with_container(rt, group_v1())
    rt.view.sandbox(pod.sandbox).config.linux.security_context.namespace_options.network = pb.POD
    only_loopback = b"\n".join(NET_DEV.splitlines()[:3])
    monkeypatch.setattr(sandboxes, "interfaces_of", lambda _pid: interfaces_from_net_dev(only_loopback))

    assert not pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux.HasField("network")


def test_list_filters_pods(rt: Runtime) -> None:
    first = pod_with_container(rt, group_v1(), name="a")
    second = pod_with_container(rt, group_v1(), name="b")

    def found(**wanted: Any) -> list[str]:
        return [stats.attributes.id for stats in listed(rt, **wanted)]

    assert found() == [first.sandbox, second.sandbox]
    assert found(id=second.sandbox[:16]) == [second.sandbox]
    assert found(label_selector={"app": "a"}) == [first.sandbox]
    assert found(label_selector={"app": "a"}, id=second.sandbox) == []


def test_ambiguous_id_prefix_is_an_error(rt: Runtime) -> None:
    firsts = [ready_pod(rt, str(number))[0] for number in range(17)]  # two begin with the same digit
    first = next(digit for digit in firsts if firsts.count(digit) > 1)
    with pytest.raises(InvalidArgument, match=rf"^filter\.id '{first}' fits "):
        listed(rt, id=first)


def test_stopped_pod_keeps_its_cpu_time(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.cpu.note(pod.sandbox, Point(1, 99))
    stop_pod_sandbox(rt, sandbox_id=pod.sandbox)

    assert listed(rt) == []
    linux = pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux
    assert (linux.cpu.usage_core_nano_seconds.value, linux.memory.usage_bytes.value) == (99, 0)
    assert list(linux.containers) == []


def test_unknown_id_is_not_found(rt: Runtime) -> None:
    with pytest.raises(NotFound):
        pod_sandbox_stats(rt, sandbox_id="ffff")


def test_vanishing_group_does_not_affect_others(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1", tmp_path / "v1")
    stays = pod_with_container(rt, group_v2(), name="stays")
    goes = pod_with_container(rt, group_v1(root=tmp_path / "v1"), name="goes", cgroup_parent="")
    assert len(listed(rt)) == 2
    remove_group(tmp_path / "v1")

    assert [stats.attributes.id for stats in listed(rt)] == [stays.sandbox]
    gone = pod_sandbox_stats(rt, sandbox_id=goes.sandbox)
    assert gone.attributes.metadata.name == "goes"
    assert not gone.linux.HasField("memory")
    assert not gone.linux.HasField("cpu")
    assert not gone.linux.process.HasField("process_count")


def test_list_is_answered_from_the_last_pass(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    container = pb.ContainerStats(attributes=pb.ContainerAttributes(id=pod.container))
    linux = pb.LinuxPodSandboxStats(cpu=pb.CpuUsage(timestamp=1), containers=[container])
    ahead = pb.PodSandboxStats(attributes=pb.PodSandboxAttributes(id=pod.sandbox), linux=linux)
    rt.stats_cache.sandbox_stats.put(pod.sandbox, ahead)

    assert listed(rt) == [ahead]
    assert rt.stats_cache.sandbox_stats.requested_recently


def test_prefetched_stats_are_returned_once_and_then_with_current_cpu_time(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    memory = pb.MemoryUsage(timestamp=2, working_set_bytes=pb.UInt64Value(value=7))
    container = pb.ContainerStats(attributes=pb.ContainerAttributes(id=pod.container), memory=memory)
    linux = pb.LinuxPodSandboxStats(cpu=pb.CpuUsage(timestamp=1), memory=memory, containers=[container])
    ahead = pb.PodSandboxStats(attributes=pb.PodSandboxAttributes(id=pod.sandbox), linux=linux)
    rt.stats_cache.sandbox_stats.put(pod.sandbox, ahead)

    [first], [second] = listed(rt), listed(rt)

    assert first.linux.cpu.timestamp == 1
    assert second.linux.cpu.timestamp > 1
    assert second.linux.memory == memory
    assert second.linux.containers[0].cpu.timestamp > 1
    assert second.linux.containers[0].memory == memory
    assert not first.linux.containers[0].HasField("cpu")


def test_container_that_exited_since_is_omitted(rt: Runtime, engine: FakeEngine) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.sandbox_stats.put(pod.sandbox, pod_sandbox_stats(rt, sandbox_id=pod.sandbox))
    engine.exit_container(pod.container)
    rt.view.refresh_container(pod.container)

    [stats] = listed(rt)

    assert list(stats.linux.containers) == []


def test_stats_of_a_single_pod_are_read_anew(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.container_stats.put(pod.container, pb.ContainerStats(cpu=pb.CpuUsage(timestamp=1)))

    [in_list] = listed(rt)[0].linux.containers
    [alone] = pod_sandbox_stats(rt, sandbox_id=pod.sandbox).linux.containers

    assert in_list.cpu.timestamp == 1
    assert alone.cpu.timestamp > 1


def test_docker_is_not_queried(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    alone = without_docker(rt)

    assert pod_sandbox_stats(alone, sandbox_id=pod.sandbox).linux.memory.usage_bytes.value > 0
    assert len(listed(alone)) == 1
