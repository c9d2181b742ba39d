import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import HOST_NETWORK, NAMESPACE, Cri, container_config, pod_config
from integration.node.box import HOST_NAME
from integration.pods.kubelet import Kubelet, Pod, failure, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def docker_name(served: Served, container_id: str) -> str:
    return str(served.engine.api.inspect_container(container_id)["Name"]).removeprefix("/")


def pid_of(served: Served, container_id: str) -> int:
    return int(served.engine.api.inspect_container(container_id)["State"]["Pid"])


def with_namespaces(**options: object) -> pb.LinuxPodSandboxConfig:
    namespaces = pb.NamespaceOption(**options)  # type: ignore[arg-type] # enum values
    context = pb.LinuxSandboxSecurityContext(namespace_options=namespaces)
    return pb.LinuxPodSandboxConfig(security_context=context)


def in_namespaces(**options: object) -> pb.LinuxContainerConfig:
    namespaces = pb.NamespaceOption(**options)  # type: ignore[arg-type] # enum values
    context = pb.LinuxContainerSecurityContext(namespace_options=namespaces)
    return pb.LinuxContainerConfig(security_context=context)


def test_a_pod_comes_and_goes_without_a_trace(served: Served, images: Images) -> None:
    cri, config = served.cri, pod_config(unused_name("whole"))
    before = served.traces()
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
    assert served.traces() == before


def test_stop_kills_the_containers_and_remove_removes_them(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    # With processes of its own: others end with the pause container, whose processes they share.
    running, created = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER)), kubelet.created(pod)

    kubelet.cri.stop(pod.id)
    assert kubelet.cri.container_status(running).state == pb.CONTAINER_EXITED
    assert kubelet.cri.container_status(created).state == pb.CONTAINER_CREATED
    kubelet.cri.remove(pod.id)

    assert not kubelet.cri.containers(pod_sandbox_id=pod.id)
    assert not {pod.id, running, created} & served.traces().containers


def test_remove_stops_what_nobody_has_stopped(kubelet: Kubelet, served: Served) -> None:
    before = served.traces()
    pod = kubelet.pod()
    kubelet.started(pod)

    kubelet.cri.remove(pod.id)

    assert served.traces() == before


# --- what a pod says of itself ----------------------------------------------------------------------------


def test_metadata_labels_and_annotations_come_back(kubelet: Kubelet) -> None:
    before = time.time_ns()
    pod = kubelet.pod(labels={"app": "web", "empty": ""}, annotations={"note": "ä=b,c", "io.kubernetes.x/y": "{}"})

    [listed] = kubelet.cri.sandboxes(id=pod.id)
    status = kubelet.cri.sandbox_status(pod.id)
    for seen in (listed, status):
        assert seen.metadata == pod.config.metadata
        assert seen.labels == pod.config.labels
        assert seen.annotations == pod.config.annotations
        assert before < seen.created_at < time.time_ns()
        assert seen.created_at % 1_000_000 != 0


def test_docker_ps_shows_the_names_of_pods_and_containers(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    container = kubelet.created(pod)

    name, uid = pod.config.metadata.name, pod.config.metadata.uid
    short = kubelet.cri.container_status(container).metadata.name
    assert docker_name(served, pod.id) == f"k8s_POD_{name}_{NAMESPACE}_{uid}_0"
    assert docker_name(served, container) == f"k8s_{short}_{name}_{NAMESPACE}_{uid}_0"


def test_a_verbose_status_tells_pid_and_network(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)

    answer = kubelet.cri.runtime.PodSandboxStatus(request)

    assert f'"pid":{pid_of(served, pod.id)}' in answer.info["info"]
    assert f"cri-{pod.id}" in answer.info["info"]


def test_new_resources_of_a_pod_are_noted(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    resources = pb.LinuxContainerResources(cpu_shares=512)

    request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.id, resources=resources)
    kubelet.cri.runtime.UpdatePodSandboxResources(request)

    assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_a_status_holds_the_containers_of_the_same_moment(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod)

    answer = kubelet.cri.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id))

    assert [status.id for status in answer.containers_statuses] == [container]
    assert answer.containers_statuses[0].state == pb.CONTAINER_RUNNING
    assert answer.timestamp > answer.containers_statuses[0].started_at


# --- namespaces -------------------------------------------------------------------------------------------


def own_namespace(kind: str) -> str:
    return str(Path(f"/proc/self/ns/{kind}").readlink())


def namespace_of(served: Served, container_id: str, kind: str) -> str:
    return str(Path(f"/proc/{pid_of(served, container_id)}/ns/{kind}").readlink())


def seen_inside(kubelet: Kubelet, container_id: str, kind: str) -> str:
    return kubelet.cri.exec(container_id, "readlink", f"/proc/self/ns/{kind}").stdout.decode().strip()


@pytest.mark.parametrize("kind", ["pid", "ipc"])
def test_a_pods_containers_share_its_namespace(kubelet: Kubelet, served: Served, kind: str) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod, linux=in_namespaces(**{kind: pb.POD}))

    assert seen_inside(kubelet, container, kind) == namespace_of(served, pod.id, kind)
    assert seen_inside(kubelet, container, kind) != own_namespace(kind)


def test_a_container_can_have_processes_of_its_own(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER))

    assert kubelet.cri.exec(container, "cat", "/proc/1/comm").stdout == b"sleep\n"


@pytest.mark.parametrize("kind", ["network", "pid", "ipc"])
def test_a_pod_can_use_a_namespace_of_the_node(kubelet: Kubelet, served: Served, kind: str) -> None:
    pod = kubelet.pod(linux=with_namespaces(**{kind: pb.NODE}))
    container = kubelet.started(pod, linux=in_namespaces(**{kind: pb.NODE}))

    name = {"network": "net"}.get(kind, kind)
    assert seen_inside(kubelet, container, name) == own_namespace(name)
    assert namespace_of(served, pod.id, name) == own_namespace(name)
    options = kubelet.cri.sandbox_status(pod.id).linux.namespaces.options
    assert getattr(options, kind) == pb.NODE


def test_a_container_can_join_the_processes_of_another(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    target = kubelet.started(pod, "sleep", "4000", linux=in_namespaces(pid=pb.CONTAINER))
    debugger = kubelet.started(pod, linux=in_namespaces(pid=pb.TARGET, target_id=target))

    assert kubelet.cri.exec(debugger, "cat", "/proc/1/cmdline").stdout == b"sleep\x004000\x00"


def test_a_target_must_run_in_the_same_pod(kubelet: Kubelet) -> None:
    pod, other = kubelet.pod(), kubelet.pod()
    elsewhere = kubelet.started(other, linux=in_namespaces(pid=pb.CONTAINER))

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, linux=in_namespaces(pid=pb.TARGET, target_id=elsewhere))

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "target_id" in message


def test_a_host_network_pod_has_the_nodes_network_and_name(kubelet: Kubelet, served: Served) -> None:
    namespaces = served.traces().namespaces
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)

    assert seen_inside(kubelet, container, "net") == own_namespace("net")
    assert kubelet.cri.exec(container, "hostname").stdout.decode().strip() == HOST_NAME
    assert kubelet.cri.sandbox_status(pod.id).network.ip == ""
    assert served.traces().namespaces == namespaces


def test_two_containers_share_memory_and_the_loopback(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    writer = kubelet.started(pod, "sh", "-c", "echo shared >/dev/shm/note; exec nc -l -p 9000 -e echo answered")
    reader = kubelet.started(pod)

    wait_until(lambda: kubelet.cri.exec(reader, "cat", "/dev/shm/note").stdout == b"shared\n")
    answer = wait_until(lambda: kubelet.cri.exec(reader, "nc", "127.0.0.1", "9000").stdout)
    assert answer == b"answered\n"
    assert kubelet.cri.container_status(writer).metadata.attempt == 0


# --- hostname, sysctls, cgroups, users --------------------------------------------------------------------


def test_every_container_has_the_hostname_of_the_pod(kubelet: Kubelet) -> None:
    pod = kubelet.pod(hostname="some-name")
    container = kubelet.started(pod)

    assert kubelet.cri.exec(container, "hostname").stdout == b"some-name\n"
    assert kubelet.cri.exec(container, "cat", "/etc/hostname").stdout == b"some-name\n"


@pytest.mark.parametrize(
    ("name", "value"), [("net.ipv4.ip_local_port_range", "20000 21000"), ("kernel.shm_rmid_forced", "1")]
)
def test_sysctls_hold_in_every_container(kubelet: Kubelet, name: str, value: str) -> None:
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(sysctls={name: value}))
    container = kubelet.started(pod)

    seen = kubelet.cri.exec(container, "cat", f"/proc/sys/{name.replace('.', '/')}").stdout.decode()
    assert seen.split() == value.split()


def test_a_sysctl_of_the_node_is_refused_and_leaves_nothing(kubelet: Kubelet, served: Served) -> None:
    before = served.traces()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(linux=pb.LinuxPodSandboxConfig(sysctls={"vm.swappiness": "1"}))

    assert "vm.swappiness" in failure(refusal)[1]
    assert served.traces() == before


def test_pause_and_containers_are_below_the_cgroup_parent(kubelet: Kubelet, served: Served) -> None:
    parent = f"{served.engine.cgroup_parent}/kubepods/burstable"
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))
    container = kubelet.started(pod)

    for container_id in (pod.id, container):
        groups = Path(f"/proc/{pid_of(served, container_id)}/cgroup").read_text().splitlines()
        assert any(line.endswith(f"{parent}/{container_id}") for line in groups)


def test_pause_runs_as_the_user_that_was_asked_for(kubelet: Kubelet, served: Served) -> None:
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


def test_a_known_runtime_handler_is_used_and_told(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(handler="io.containerd.runc.v2")

    assert served.engine.api.inspect_container(pod.id)["HostConfig"]["Runtime"] == "io.containerd.runc.v2"
    assert kubelet.cri.sandbox_status(pod.id).runtime_handler == "io.containerd.runc.v2"
    assert kubelet.cri.sandboxes(id=pod.id)[0].runtime_handler == "io.containerd.runc.v2"


def test_an_unknown_runtime_handler_is_refused_with_the_known_ones(kubelet: Kubelet, served: Served) -> None:
    before = served.traces()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(handler="gvisor")

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "runtime_handler" in message
    assert "'gvisor'" in message
    assert "runc" in message
    assert served.traces() == before


# --- resolv.conf ------------------------------------------------------------------------------------------

DNS = pb.DNSConfig(servers=["10.96.0.10", "fd00::a"], searches=["a.test", "b.test"], options=["ndots:5"])
RESOLV_CONF = "nameserver 10.96.0.10\nnameserver fd00::a\nsearch a.test b.test\noptions ndots:5\n"


def resolv_conf(kubelet: Kubelet, container_id: str) -> str:
    return kubelet.cri.exec(container_id, "cat", "/etc/resolv.conf").stdout.decode()


def test_resolv_conf_says_what_was_asked_for(kubelet: Kubelet) -> None:
    pod = kubelet.pod(dns_config=DNS)

    assert resolv_conf(kubelet, kubelet.started(pod)) == RESOLV_CONF


def test_resolv_conf_is_the_nodes_when_nothing_was_asked_for(kubelet: Kubelet) -> None:
    assert resolv_conf(kubelet, kubelet.started(kubelet.pod())) == Path("/etc/resolv.conf").read_text()


def test_resolv_conf_of_a_host_network_pod_says_what_was_asked_for(kubelet: Kubelet) -> None:
    pod = kubelet.pod(dns_config=DNS, linux=HOST_NETWORK)

    assert resolv_conf(kubelet, kubelet.started(pod)) == RESOLV_CONF


def test_resolv_conf_is_one_file_and_survives_a_restart_of_pause(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(dns_config=DNS)
    container = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER))

    def inode(container_id: str) -> int:
        return Path(f"/proc/{pid_of(served, container_id)}/root/etc/resolv.conf").stat().st_ino

    before = inode(pod.id)
    served.engine.api.restart(pod.id, timeout=0)

    assert inode(pod.id) == inode(container) == before
    assert resolv_conf(kubelet, container) == RESOLV_CONF


def test_a_container_may_bring_a_resolv_conf_of_its_own(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 9.9.9.9\n")
    mount = pb.Mount(host_path=str(tmp_path / "resolv.conf"), container_path="/etc/resolv.conf")

    container = kubelet.started(kubelet.pod(dns_config=DNS), mounts=[mount])

    assert resolv_conf(kubelet, container) == "nameserver 9.9.9.9\n"


# --- the same name again ----------------------------------------------------------------------------------


def test_the_same_attempt_twice_is_one_sandbox(kubelet: Kubelet) -> None:
    pod = kubelet.pod()

    assert kubelet.cri.run(pod.config) == pod.id


def test_the_same_attempt_at_the_same_time_is_one_sandbox(cri: Cri, served: Served) -> None:
    config = pod_config(unused_name("twin"))
    before = served.traces()

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(lambda _: cri.run(config), range(4)))
    [sandbox] = ids
    cri.remove(sandbox)

    assert served.traces() == before


def test_the_next_attempt_is_another_sandbox(kubelet: Kubelet, cri: Cri) -> None:
    pod = kubelet.pod()
    config = pod_config(pod.config.metadata.name, attempt=1)

    second = cri.run(config)
    assert second != pod.id
    assert {sandbox.id for sandbox in cri.sandboxes()} >= {pod.id, second}
    cri.remove(second)
    assert cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_a_stopped_sandbox_of_the_same_attempt_is_replaced(kubelet: Kubelet, served: Served) -> None:
    before = served.traces()
    pod = kubelet.pod()
    kubelet.cri.stop(pod.id)

    again = kubelet.cri.run(pod.config)
    assert again != pod.id
    assert pod.id not in {sandbox.id for sandbox in kubelet.cri.sandboxes()}
    kubelet.cri.remove(again)
    assert served.traces() == before


def name_of(config: pb.PodSandboxConfig) -> str:
    return f"k8s_POD_{config.metadata.name}_{NAMESPACE}_{config.metadata.uid}_0"


def test_a_dead_holder_of_the_name_is_removed(kubelet: Kubelet, served: Served, images: Images) -> None:
    config = pod_config(unused_name("taken"))
    holder = served.engine.api.create_container(images.busybox, name=name_of(config))["Id"]

    sandbox = kubelet.cri.run(config)

    assert docker_name(served, sandbox) == name_of(config)
    assert holder not in served.traces().containers
    kubelet.cri.remove(sandbox)


def test_a_running_holder_that_is_not_ours_keeps_its_name(kubelet: Kubelet, served: Served, images: Images) -> None:
    config = pod_config(unused_name("taken"))
    api = served.engine.api
    holder = api.create_container(images.busybox, ["sleep", "600"], name=name_of(config))["Id"]
    api.start(holder)
    try:
        sandbox = kubelet.cri.run(config)
        assert docker_name(served, sandbox).startswith(name_of(config) + "_")
        assert kubelet.cri.sandbox_status(sandbox).metadata == config.metadata
        assert kubelet.cri.run(config) == sandbox
        kubelet.cri.remove(sandbox)
        assert holder in served.traces().containers
    finally:
        api.remove_container(holder, force=True)


def test_containers_that_are_not_of_pods_are_not_listed(cri: Cri, served: Served, images: Images) -> None:
    labels = {"io.kubernetes.docker.type": "container", "io.pydockershim.config": "{}"}
    other = served.engine.api.create_container(images.busybox, name="k8s-like", labels=labels)["Id"]
    try:
        wait_until(lambda: other in served.traces().containers)
        assert other not in {container.id for container in cri.containers()}
        with pytest.raises(grpc.RpcError) as unknown:
            cri.container_status(other)
        assert failure(unknown)[0] == grpc.StatusCode.NOT_FOUND
        cri.remove_container(other)
        assert other in served.traces().containers
    finally:
        served.engine.api.remove_container(other, force=True)


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
