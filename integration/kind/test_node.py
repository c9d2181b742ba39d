"""The node image: it boots, Docker and the server suit a kubelet, and pods run and survive restarts."""

import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from integration.cri import Cri, container_config, pod_config
from integration.kind.image import CHECKOUT, PAUSE, VERSION
from integration.kind.node import KindNode
from integration.node.images import BUSYBOX, archive, busybox_image
from integration.node.isolation import Node
from integration.pods.kubelet import in_context, secured
from integration.pods.user_namespaces import FIRST, SIZE, features, own_users
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

LEASES = "/var/lib/cni/networks/pods-bridge"


@contextmanager
def pod(cri: Cri, name: str, namespaces: pb.NamespaceOption | None = None) -> Iterator[tuple[str, str]]:
    """Run a pod with a container in the cgroup of pods; yield both ids, and remove the pod at the end."""
    uid = uuid.uuid4().hex
    options = namespaces or pb.NamespaceOption()
    context = in_context(namespace_options=options)["linux"].security_context
    group = f"kubepods-pod{uid}.slice"
    config = pod_config(name, uid=uid, linux=pb.LinuxPodSandboxConfig(cgroup_parent=group, security_context=context))
    sandbox = cri.run(config)
    try:
        linux = secured(namespace_options=options)["linux"]
        own = container_config("main", image=BUSYBOX, linux=linux)
        container = cri.create(sandbox, own, pod=config)
        cri.start(container)
        yield sandbox, container
    finally:
        cri.stop(sandbox)
        cri.remove(sandbox)


def leases(node: KindNode) -> list[str]:
    return [name for name in node.output("sh", "-c", f"ls {LEASES} 2>/dev/null || true").split() if name[0].isdigit()]


def nothing_is_left(node: KindNode) -> None:
    assert leases(node) == []
    assert node.output("docker", "ps", "--all", "--quiet") == ""
    assert node.output("sh", "-c", "ls /run/netns 2>/dev/null || true").split() == []
    assert node.output("ls", "/var/lib/pydockershim/sandboxes").split() == []


def test_the_node_boots_without_a_failed_unit(kind_node: KindNode) -> None:
    assert kind_node.output("systemctl", "list-units", "--failed", "--plain", "--no-legend").strip() == ""
    for unit in ("docker.service", "containerd.service", "pydockershim.service"):
        assert kind_node.output("systemctl", "is-active", unit).strip() == "active", unit
    kind_node.output("test", "-e", "/var/lib/kind-images/loaded")


def test_docker_is_configured_for_a_kubelet(kind_node: KindNode) -> None:
    info = kind_node.output("docker", "info", "--format", "{{.CgroupDriver}} {{.Driver}} {{.LiveRestoreEnabled}}")

    assert info.split() == ["systemd", "overlay2", "true"]
    assert kind_node.output("docker", "network", "ls", "--format", "{{.Name}}").split() == ["host", "none"]


def test_the_images_of_the_node_are_in_docker(kind_node: KindNode) -> None:
    listed = kind_node.output("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split()

    assert {PAUSE, "busybox:latest"} <= set(listed)
    assert kind_node.output("cat", "/etc/pydockershim/config.toml") == f'pod_infra_container_image = "{PAUSE}"\n'


def test_images_in_the_containerd_of_the_node_are_loaded_as_well(kind_node: KindNode, node: Node) -> None:
    image = replace(busybox_image(node.busybox), reference="node.test/in-containerd:1")
    # As `kind build node-image` does.
    words = ["--namespace=k8s.io", "images", "import", "--all-platforms", "--no-unpack", "--digests", "-"]
    kind_node.output("/usr/bin/ctr", *words, stdin=archive(image))
    assert kind_node.run("docker", "image", "inspect", image.reference).returncode != 0

    kind_node.output("rm", "/var/lib/kind-images/loaded")
    kind_node.output("systemctl", "restart", "kind-images.service")

    kind_node.output("docker", "image", "inspect", image.reference)
    kind_node.output("test", "-e", "/var/lib/kind-images/loaded")
    assert "archive-node-images" not in kind_node.output("journalctl", "--no-pager", "--unit=kind-images.service")


def test_doctor_finds_nothing_wrong(kind_node: KindNode) -> None:
    found = kind_node.output("pydockershim", "doctor")

    assert not re.search(r"^FAIL", found, flags=re.MULTILINE), found
    for line in (
        r"ok +docker +28\.",
        r"ok +live-restore ",
        rf"ok +pause image +{re.escape(PAUSE)} is here",
        r"ok +pod network +network pods-bridge ",
        r"ok +server +docker 28\.\S+ answers at unix:///run/cri-dockerd\.sock$",
        r"ok +unit +pydockershim\.service is active",
        r"ok +kubeadm +--cri-socket unix:///run/cri-dockerd\.sock",
    ):
        assert re.search(f"^{line}", found, flags=re.MULTILINE), f"{line}\n{found}"


def test_doctor_reports_a_server_whose_docker_is_down(kind_node: KindNode) -> None:
    kind_node.output("systemctl", "stop", "docker.socket", "docker.service")
    try:
        found = kind_node.run("pydockershim", "doctor").stdout.decode()
    finally:
        kind_node.output("systemctl", "start", "docker.socket", "docker.service")
        kind_node.wait_serving()

    assert re.search(r"^FAIL +docker ", found, flags=re.MULTILINE), found
    assert re.search(r"^warn +server .*DockerDaemonNotReady", found, flags=re.MULTILINE), found


def test_a_pod_runs_below_the_slice_of_its_pod(kind_node: KindNode) -> None:
    with kind_node.cri() as cri, pod(cri, "sliced") as (sandbox, container):
        said = cri.exec(container, "sh", "-c", "echo here; cat /proc/1/cgroup")
        address = cri.sandbox_status(sandbox).network.ip
        pid = kind_node.output("docker", "inspect", "--format", "{{.State.Pid}}", container).strip()
        groups = kind_node.output("cat", f"/proc/{pid}/cgroup")
        assert leases(kind_node) == [address]

    assert said.stdout.startswith(b"here\n")
    assert re.search(rf"/kubepods-pod\w+\.slice/docker-{container}\.scope$", groups, flags=re.MULTILINE), groups
    nothing_is_left(kind_node)


def test_a_pod_has_a_user_namespace(kind_node: KindNode) -> None:
    with kind_node.cri() as cri:
        wait_until(lambda: features(cri).user_namespaces)
        with pod(cri, "mapped", own_users()) as (_, container):
            said = cri.exec(container, "sh", "-c", "cat /proc/self/uid_map; touch /new; stat -c %u /new /bin")

    assert said.stdout.split() == [b"0", b"%d" % FIRST, b"%d" % SIZE, b"0", b"0"]
    nothing_is_left(kind_node)


TABLE = (CHECKOUT / "tests/data/kind-commands.tsv").read_text().splitlines()
COMMANDS = [row[2] for row in (line.split("\t") for line in TABLE[2:]) if row[1] == "node"]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_commands_that_kind_runs_in_a_node_succeed(kind_node: KindNode, command: str) -> None:
    kind_node.output("mkdir", "-p", "/kind", "/etc/kubernetes/pki")
    done = kind_node.run(*shlex.split(command), stdin=b"any\n")  # an archive is not text
    assert done.returncode == 0, done.stderr
    kind_node.wait_serving()  # one of the commands restarts containerd


def test_registries_configured_for_containerd_are_reported(kind_node: KindNode) -> None:
    kind_node.output("mkdir", "-p", "/etc/containerd/certs.d/localhost:5001")
    words = ["journalctl", "--no-pager", "-u", "registry-notice.service"]

    wait_until(lambda: "is not read by Docker" in kind_node.output(*words))


def test_the_exported_logs_have_the_server_and_docker(kind_node: KindNode) -> None:
    journal = kind_node.output("journalctl", "--no-pager")

    assert "pydockershim[" in journal
    assert "dockerd[" in journal
    assert kind_node.output("cat", "/kind/version").strip() == VERSION
    archived = kind_node.run("tar", "--hard-dereference", "-C", "/var/log/", "-chf", "-", ".")
    assert len(archived.stdout) > 10_000


def test_a_restart_of_containerd_for_its_configuration_harms_no_pod(kind_node: KindNode) -> None:
    with kind_node.cri() as cri, pod(cri, "bystander") as (_, container):
        kind_node.output("bash", "-c", "! pgrep --exact containerd || systemctl restart containerd")
        kind_node.wait_serving()

        assert state_of(cri, container) == pb.CONTAINER_RUNNING
        assert cri.exec(container, "echo", "still here").stdout == b"still here\n"


def state_of(cri: Cri, container: str) -> int:
    return cri.container_status(container).state


def test_a_loaded_image_is_in_docker_and_can_be_tagged(kind_node: KindNode, node: Node) -> None:
    image = replace(busybox_image(node.busybox), reference="node.test/app:1")
    words = ["ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "--digests", "--snapshotter=overlayfs"]
    kind_node.output(*words, "-", stdin=archive(image))
    image_id = kind_node.output("docker", "image", "inspect", "--format", "{{.Id}}", image.reference).strip()

    kind_node.output("ctr", "--namespace=k8s.io", "images", "tag", "--force", image_id, "docker.io/library/app:2")

    with kind_node.cri() as cri:
        status = cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image="docker.io/library/app:2")))
    assert status.image.id == image_id


def test_pods_run_on_the_containerd_image_store(node_with_containerd_store: KindNode, node: Node) -> None:
    there = node_with_containerd_store
    words = ["docker", "info", "--format", "{{.Driver}} {{.CgroupDriver}} {{.DriverStatus}}"]
    assert re.match(r"overlayfs systemd .*io\.containerd\.snapshotter", there.output(*words))
    image = busybox_image(node.busybox, reference="node.test/loaded:1")
    there.output("ctr", "--namespace=k8s.io", "images", "import", "--digests", "-", stdin=archive(image))
    there.output("docker", "image", "inspect", PAUSE, "busybox:latest", image.reference)

    with there.cri() as cri, pod(cri, "stored") as (sandbox, container):
        pid = there.output("docker", "inspect", "--format", "{{.State.Pid}}", container).strip()
        assert f"/docker-{container}.scope" in there.output("cat", f"/proc/{pid}/cgroup")
        there.output("systemctl", "restart", "docker.service")
        there.wait_serving()
        assert sandboxes(cri)[sandbox] == pb.SANDBOX_READY
        assert cri.exec(container, "echo", "still here").stdout == b"still here\n"
    nothing_is_left(there)


def test_pods_survive_restarts_of_the_server_and_of_docker(kind_node: KindNode) -> None:
    with kind_node.cri() as cri, pod(cri, "survivor") as (sandbox, container):
        started = kind_node.output("docker", "inspect", "--format", "{{.State.StartedAt}}", container)
        kind_node.output("systemctl", "restart", "pydockershim.service")
        kind_node.output("systemctl", "restart", "docker.service")
        kind_node.wait_serving()

        assert kind_node.output("docker", "inspect", "--format", "{{.State.StartedAt}}", container) == started
        assert sandboxes(cri)[sandbox] == pb.SANDBOX_READY
        assert cri.exec(container, "echo", "still here").stdout == b"still here\n"
    nothing_is_left(kind_node)


def sandboxes(cri: Cri) -> dict[str, int]:
    return {found.id: found.state for found in cri.sandboxes()}


def restart_host(node: KindNode) -> None:
    """Restart the Docker of the host, which starts its containers again as after a reboot."""
    node.engine.restart()
    node.wait_booted()


@pytest.mark.parametrize("restart", [KindNode.restart, restart_host], ids=["node", "host"])
def test_after_a_restart_old_pods_have_exited_and_release_their_address(
    kind_node: KindNode, restart: Callable[[KindNode], None]
) -> None:
    with kind_node.cri() as cri:
        config = pod_config("of-before", uid=uuid.uuid4().hex)
        sandbox = cri.run(config)
        container = cri.create(sandbox, container_config("main", image=BUSYBOX), pod=config)
        cri.start(container)
        assert len(leases(kind_node)) == 1

    restart(kind_node)

    with kind_node.cri() as cri:
        assert sandboxes(cri) == {sandbox: pb.SANDBOX_NOTREADY}
        assert state_of(cri, container) == pb.CONTAINER_EXITED
        cri.stop(sandbox)
        cri.remove(sandbox)
        nothing_is_left(kind_node)

        with pod(cri, "of-now") as (_, container):
            assert cri.exec(container, "echo", "again").stdout == b"again\n"
    nothing_is_left(kind_node)
