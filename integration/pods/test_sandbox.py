import time
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import NAMESPACE, container_config, pod_config
from integration.pods.kubelet import Kubelet, Pod, docker_name, failure, in_namespaces, pid_of, unused_name
from shim.api.v1 import api_pb2 as pb


def test_a_pod_comes_and_goes_without_a_trace(served: Served, images: Images) -> None:
    cri, config = served.cri, pod_config(unused_name("whole"))
    before = served.snapshot()
    sandbox = cri.run(config)
    assert cri.sandbox_status(sandbox).state == pb.SANDBOX_READY

    container = cri.create(sandbox, container_config("main", image=images.busybox), pod=config)
    assert cri.container_status(container).state == pb.CONTAINER_CREATED
    cri.start(container)
    assert cri.container_status(container).state == pb.CONTAINER_RUNNING
    cri.stop_container(container, timeout=0)
    assert cri.container_status(container).state == pb.CONTAINER_EXITED
    cri.remove_container(container)
    assert not cri.containers(pod_sandbox_id=sandbox)

    cri.stop(sandbox)
    assert cri.sandbox_status(sandbox).state == pb.SANDBOX_NOTREADY
    cri.remove(sandbox)
    assert not cri.sandboxes(id=sandbox)
    assert served.snapshot() == before


def test_stop_kills_the_containers_and_remove_removes_them(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    # With a separate PID namespace: containers in the pod's end with the pause container.
    running, created = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER)), kubelet.created(pod)

    kubelet.cri.stop(pod.id)
    assert kubelet.cri.container_status(running).state == pb.CONTAINER_EXITED
    assert kubelet.cri.container_status(created).state == pb.CONTAINER_CREATED
    kubelet.cri.remove(pod.id)

    assert not kubelet.cri.containers(pod_sandbox_id=pod.id)
    assert not {pod.id, running, created} & served.snapshot().containers


def test_remove_stops_a_running_pod(kubelet: Kubelet, served: Served) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    kubelet.started(pod)

    kubelet.cri.remove(pod.id)

    assert served.snapshot() == before


# --- the status of a pod ----------------------------------------------------------------------------------


def test_metadata_labels_and_annotations_come_back(kubelet: Kubelet, served: Served) -> None:
    before, name = time.time_ns(), unused_name("named")
    metadata = pb.PodSandboxMetadata(name=name, uid="1-2", namespace="team", attempt=3)
    pod = kubelet.pod(
        metadata=metadata, labels={"app": "web", "empty": ""}, annotations={"note": "ä=b,c", "io.kubernetes.x/y": "{}"}
    )

    [listed] = kubelet.cri.sandboxes(id=pod.id)
    status = kubelet.cri.sandbox_status(pod.id)
    for seen in (listed, status):
        assert seen.metadata == metadata
        assert seen.labels == pod.config.labels
        assert seen.annotations == pod.config.annotations
        assert before < seen.created_at < time.time_ns()
        assert seen.created_at % 1_000_000 != 0
    assert docker_name(served, pod.id) == f"k8s_POD_{name}_team_1-2_3"


def test_docker_ps_shows_the_names_of_pods_and_containers(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    container = kubelet.created(pod)

    name, uid = pod.config.metadata.name, pod.config.metadata.uid
    short = kubelet.cri.container_status(container).metadata.name
    assert docker_name(served, pod.id) == f"k8s_POD_{name}_{NAMESPACE}_{uid}_0"
    assert docker_name(served, container) == f"k8s_{short}_{name}_{NAMESPACE}_{uid}_0"


def test_docker_stats_shows_the_usage_of_pause_and_containers(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod)

    for each in (pod.id, container):
        # Without a record of the pod's network Docker answers zeros for containers that join it.
        seen = served.engine.api.stats(each, stream=False, one_shot=True)
        assert seen["memory_stats"]["usage"] > 0
        assert seen["pids_stats"]["current"] > 0


def test_a_verbose_status_has_pid_and_network(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)

    answer = kubelet.cri.runtime.PodSandboxStatus(request)

    assert f'"pid":{pid_of(served, pod.id)}' in answer.info["info"]
    assert f"cri-{pod.id}" in answer.info["info"]


def test_a_status_has_the_containers_of_the_same_moment(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod)

    answer = kubelet.cri.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id))

    assert [status.id for status in answer.containers_statuses] == [container]
    assert answer.containers_statuses[0].state == pb.CONTAINER_RUNNING
    assert answer.timestamp > answer.containers_statuses[0].started_at


# --- hostname, sysctls, cgroups, users --------------------------------------------------------------------


def test_every_container_has_the_hostname_of_the_pod(kubelet: Kubelet) -> None:
    pod = kubelet.pod(hostname="some-name")
    container = kubelet.started(pod)

    assert kubelet.cri.exec(container, "hostname").stdout == b"some-name\n"
    assert kubelet.cri.exec(container, "cat", "/etc/hostname").stdout == b"some-name\n"


def test_localhost_resolves_without_a_mounted_hosts_file(kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())

    assert "127.0.0.1\tlocalhost\n" in kubelet.inside(container, "cat /etc/hosts")


@pytest.mark.parametrize(
    ("name", "value"), [("net.ipv4.ip_local_port_range", "20000 21000"), ("kernel.shm_rmid_forced", "1")]
)
def test_sysctls_are_in_force_in_every_container(kubelet: Kubelet, name: str, value: str) -> None:
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(sysctls={name: value}))
    container = kubelet.started(pod)

    seen = kubelet.cri.exec(container, "cat", f"/proc/sys/{name.replace('.', '/')}").stdout.decode()
    assert seen.split() == value.split()


@pytest.mark.parametrize(
    ("asked", "disabled"),
    [
        ("", {"all": "0", "default": "0", "lo": "0", "eth0": "0"}),
        ("all", {"all": "1", "default": "1", "lo": "1", "eth0": "1"}),
        ("lo", {"all": "0", "default": "0", "lo": "1", "eth0": "0"}),
        ("default", {"all": "0", "default": "1", "lo": "0", "eth0": "1"}),
    ],
)
def test_ipv6_is_on_unless_the_pod_switches_it_off(kubelet: Kubelet, asked: str, disabled: dict[str, str]) -> None:
    sysctls = {f"net.ipv6.conf.{asked}.disable_ipv6": "1"} if asked else {}
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(sysctls=sysctls))
    container = kubelet.started(pod)

    words = "; ".join(f"cat /proc/sys/net/ipv6/conf/{name}/disable_ipv6" for name in disabled)
    assert kubelet.inside(container, words).split() == list(disabled.values())


def test_a_sysctl_of_the_node_is_refused_and_leaves_nothing(kubelet: Kubelet, served: Served) -> None:
    before = served.snapshot()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(linux=pb.LinuxPodSandboxConfig(sysctls={"vm.swappiness": "1"}))

    assert "vm.swappiness" in failure(refusal)[1]
    assert served.snapshot() == before


def test_pause_and_containers_are_below_the_cgroup_parent(kubelet: Kubelet, served: Served) -> None:
    parent = served.engine.cgroup_below("kubepods", "burstable")
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))
    container = kubelet.started(pod)

    for container_id in (pod.id, container):
        groups = Path(f"/proc/{pid_of(served, container_id)}/cgroup").read_text().splitlines()
        assert any(line.endswith(served.engine.cgroup_of(container_id, parent=parent)) for line in groups)


def test_pause_runs_as_the_requested_user(kubelet: Kubelet, served: Served) -> None:
    context = pb.LinuxSandboxSecurityContext(
        run_as_user=pb.Int64Value(value=1234),
        run_as_group=pb.Int64Value(value=2345),
        supplemental_groups=[3456],
        readonly_rootfs=True,
    )
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))

    lines = Path(f"/proc/{pid_of(served, pod.id)}/status").read_text().splitlines()
    fields = {key: value.split() for key, value in (line.split(":", 1) for line in lines)}
    assert (fields["Uid"][0], fields["Gid"][0]) == ("1234", "2345")
    assert "3456" in fields["Groups"]


def test_pause_cannot_gain_privileges(kubelet: Kubelet, served: Served) -> None:
    status = Path(f"/proc/{pid_of(served, kubelet.pod().id)}/status").read_text()

    assert "NoNewPrivs:\t1\n" in status


# --- runtime handlers -------------------------------------------------------------------------------------


def test_a_known_runtime_handler_is_used_and_reported(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(handler="io.containerd.runc.v2")

    assert served.engine.api.inspect_container(pod.id)["HostConfig"]["Runtime"] == "io.containerd.runc.v2"
    assert kubelet.cri.sandbox_status(pod.id).runtime_handler == "io.containerd.runc.v2"
    assert kubelet.cri.sandboxes(id=pod.id)[0].runtime_handler == "io.containerd.runc.v2"


def test_an_unknown_runtime_handler_is_refused_with_the_known_ones(kubelet: Kubelet, served: Served) -> None:
    before = served.snapshot()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(handler="gvisor")

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "runtime_handler" in message
    assert "'gvisor'" in message
    assert "runc" in message
    assert served.snapshot() == before


def test_a_container_needs_a_ready_sandbox(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    kubelet.cri.stop(pod.id)

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod)

    assert failure(refusal) == (grpc.StatusCode.FAILED_PRECONDITION, f"pod sandbox {pod.id} is not ready")


def test_a_container_needs_a_sandbox(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(Pod("0" * 64, pod.config))

    assert failure(refusal)[0] == grpc.StatusCode.NOT_FOUND
