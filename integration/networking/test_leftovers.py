"""At its start the server removes the network state of lost pods; the state of others stays."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import Cri, pod_config
from integration.networking.containerd import containerd_beside
from integration.networking.podman import Backend, podman_beside
from integration.networks import bridge, conflist, names_port, nat_rules, reserved
from integration.node.engine import Engine, remove_link
from integration.node.images import Image
from integration.node.isolation import HOME, Node, new_home
from integration.pods.faulty_plugin import TYPE, FaultyPlugin
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.cni.conf import parse_network
from shim.cni.plugins import Attachment, Plugins
from shim.netns.pin import is_pinned

LINK, NETWORK = "left0", "left"
SUBNETS = ("10.97.0.0/16", "fd00:97::/64")
FIRST_PORT = 31800
PODS = int(os.environ.get("LEFTOVER_PODS", "5"))
"""A node has 50 pods; 5 test the same in less time."""


@dataclass(frozen=True, slots=True)
class Left:
    """A server that can be restarted without its state, and the faults of its plugin."""

    served: Served
    plugin: FaultyPlugin
    network: str

    def leases(self) -> dict[str, str]:
        """Map each reserved address to its container id."""
        return reserved(self.served.dirs.cni_leases / NETWORK)

    def wipe(self) -> None:
        """Kill the server, and delete its state and every container."""
        self.served.server.kill()
        shutil.rmtree(self.served.dirs.state)
        self.remove_containers()

    def remove_containers(self) -> None:
        api = self.served.engine.api
        for row in api.containers(all=True, filters={"label": "io.kubernetes.docker.type"}):
            api.remove_container(row["Id"], force=True)

    def veths(self) -> set[str]:
        """Return the ports of the bridge."""
        return {path.name for path in Path(f"/sys/class/net/{LINK}/brif").glob("*")}


@pytest.fixture
def left(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Left]:  # noqa: ARG001 - images must be there
    plugin = FaultyPlugin(node_dirs.cni_more_bin, real=node_dirs.cni_bin / "bridge")
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    network = conflist(
        bridge(node_dirs.cni_leases, kind=TYPE, link=LINK, subnets=SUBNETS, ipMasq=True), portmap, name=NETWORK
    )
    (node_dirs.cni_conf / "10-left.conflist").write_text(network)
    try:
        with serving(engine, node_dirs) as served:
            yield Left(served, plugin, network)
    finally:
        remove_link(LINK)


def run_pods(cri: Cri, count: int) -> list[str]:
    return [
        cri.run(
            pod_config(
                f"left-{number}", port_mappings=[pb.PortMapping(container_port=80, host_port=FIRST_PORT + number)]
            )
        )
        for number in range(count)
    ]


def nothing_of(left: Left, sandboxes: list[str]) -> bool:
    """Return whether nothing of these pods is left."""
    names = "\n".join(path.name for path in (left.served.dirs.cni_cache / "results").glob("*"))
    pins = {path.name for path in left.served.dirs.netns.glob("*")}
    if set(left.leases().values()) & set(sandboxes):
        return False
    if any(sandbox in names or f"cri-{sandbox}" in pins for sandbox in sandboxes):
        return False
    rules = nat_rules()  # last, because it runs a process
    return not (
        any(sandbox in rules for sandbox in sandboxes)
        or any(names_port(rules, FIRST_PORT + number) for number in range(len(sandboxes)))
    )


def test_pods_whose_state_and_containers_are_lost_leave_nothing(left: Left) -> None:
    before = left.served.snapshot()
    rules = nat_rules()
    sandboxes = run_pods(left.served.cri, PODS)
    assert len(left.leases()) == PODS * len(SUBNETS)
    assert names_port(nat_rules(), FIRST_PORT)
    left.wipe()

    left.served.restart()

    wait_until(lambda: nothing_of(left, sandboxes), 60)
    wait_until(lambda: not left.veths())
    assert left.leases() == {}
    assert list((left.served.dirs.cni_cache / "results").iterdir()) == []
    assert before.namespaces == left.served.snapshot().namespaces
    assert before.links == left.served.snapshot().links
    assert not [line for line in nat_rules().splitlines() if line not in rules and "CNI-HOSTPORT" not in line]


@pytest.mark.parametrize("done", [False, True], ids=["before the operation", "after it"])
def test_an_add_in_progress_when_state_and_containers_are_lost_leaves_nothing(left: Left, done: bool) -> None:
    with left.plugin.held("ADD", done=done) as held:
        call = left.served.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=pod_config("half")))
        held.wait_reached()
        # Docker may not list it as running yet: ADD begins before the start is answered.
        [row] = left.served.engine.api.containers(all=True, filters={"label": "io.kubernetes.docker.type"})
        left.wipe()
        call.cancel()
        left.served.restart()
        wait_until(held.gone)
        wait_until(lambda: nothing_of(left, [row["Id"]]), 30)
    assert left.leases() == {}
    wait_until(lambda: not left.veths())


def test_pods_that_lost_only_their_state_keep_their_network(left: Left) -> None:
    [sandbox] = run_pods(left.served.cri, 1)
    ip = left.served.cri.sandbox_status(sandbox).network.ip
    left.served.server.kill()
    shutil.rmtree(left.served.dirs.state)

    left.served.restart()
    [gone] = run_pods(left.served.cri, 2)[1:]
    left.served.engine.api.remove_container(gone, force=True)

    status = left.served.cri.sandbox_status(sandbox)
    assert (status.state, status.network.ip) == (pb.SANDBOX_READY, ip)
    assert sandbox in left.leases().values()


@contextmanager
def attached_by(name: str, left: Left, netns: Path, *, container_id: str) -> Iterator[Attachment]:
    """Attach a namespace of another runtime to the server's network, with an entry in the shared cache."""
    dirs = left.served.dirs
    subprocess.run(["unshare", f"--net={_touched(netns)}", "true"], check=True)
    made = Attachment(
        conflist=parse_network(left.network.encode(), file="10-left.conflist").conflist,
        container_id=container_id,
        netns=str(netns),
        ifname="eth0",
        args=[("IgnoreUnknown", "1"), ("K8S_POD_NAME", name)],
        capabilities={"portMappings": [{"hostPort": 31900, "containerPort": 80, "protocol": "tcp"}]},
    )
    plugins = Plugins(bin_dirs=[dirs.cni_more_bin, dirs.cni_bin], cache_dir=dirs.cni_cache, timeout=60)
    plugins.add(made)
    try:
        yield made
    finally:
        plugins.delete(made)
        subprocess.run(["umount", str(netns)], check=True)
        netns.unlink()


def _touched(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize(
    ("netns", "container_id"),
    [
        ("cni-6f1e2a34-1111-2222-3333-444455556666", "d" * 64),
        (f"cri-{'e' * 64}", "e" * 64),
        ("netns-6f1e2a34-1111-2222-3333-444455556666", "f" * 64),
        ("6f1e2a34-1111-2222-3333-444455556666", "0" * 64),
    ],
    ids=["containerd", "a runtime that pins as we do", "podman", "cri-o"],
)
def test_attachments_of_another_runtime_on_the_same_network_stay(left: Left, netns: str, container_id: str) -> None:
    path = left.served.dirs.netns / netns
    sandboxes = run_pods(left.served.cri, 1)
    with attached_by("other", left, path, container_id=container_id) as other:
        left.wipe()
        left.served.restart()
        wait_until(lambda: nothing_of(left, sandboxes), 60)

        assert is_pinned(path)
        assert set(left.leases().values()) == {container_id}
        assert names_port(nat_rules(), 31900)
        assert (left.served.dirs.cni_cache / "results" / f"{other.network}-{container_id}-eth0").exists()
        shown = subprocess.run(
            ["nsenter", f"--net={path}", "ip", "-json", "address", "show", "dev", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert addresses_in(json.loads(shown.stdout)) >= set(left.leases())
    assert left.leases() == {}


def addresses_in(links: list[dict[str, Any]]) -> set[str]:
    return {address["local"] for link in links for address in link["addr_info"]}


def test_dockers_own_networks_stay(left: Left, images: Images) -> None:
    api = left.served.engine.api
    network = api.create_network("mine", driver="bridge")["Id"]
    host = api.create_host_config(port_bindings={80: 31950}, network_mode="mine")
    container = api.create_container(images.busybox, ["sleep", "3600"], host_config=host, ports=[80])["Id"]
    api.start(container)
    try:
        settings = api.inspect_container(container)["NetworkSettings"]
        sandboxes = run_pods(left.served.cri, 1)
        left.wipe()
        left.served.restart()
        wait_until(lambda: nothing_of(left, sandboxes), 60)

        assert api.inspect_container(container)["NetworkSettings"] == settings
        assert names_port(nat_rules(), 31950)
        assert Path(settings["SandboxKey"]).exists()
    finally:
        api.remove_container(container, force=True)
        api.remove_network(network)


def test_pods_of_a_containerd_on_the_same_network_stay(
    left: Left, node: Node, pause_image: Image, tmp_path: Path
) -> None:
    linux = pb.LinuxPodSandboxConfig(cgroup_parent=f"{node.cgroup_parent}/containerd")
    config = pod_config("theirs", linux=linux, log_directory=str(tmp_path))
    home = HOME / f"ctd-{os.getpid()}"
    with containerd_beside(node, left.served.dirs, home, pause_image) as theirs:
        pod = theirs.run(config)
        sandboxes = run_pods(left.served.cri, 2)
        assert set(left.leases().values()) == {pod, *sandboxes}
        left.wipe()
        left.served.restart()
        wait_until(lambda: nothing_of(left, sandboxes), 60)

        status = theirs.sandbox_status(pod)
        assert status.state == pb.SANDBOX_READY
        assert left.leases()[status.network.ip] == pod
        assert set(left.leases().values()) == {pod}
        theirs.stop(pod)
        theirs.remove(pod)
        assert left.leases() == {}
    shutil.rmtree(home)


@pytest.mark.parametrize(("backend", "network"), [("cni", NETWORK), ("netavark", "theirs")])
def test_containers_of_podman_stay(left: Left, node: Node, backend: Backend, network: str) -> None:
    home = new_home("podman")
    with podman_beside(node, left.served.dirs, home, backend=backend, network=network, port=31970) as podman:
        known, inside, netns = podman.inspect()["NetworkSettings"], podman.addresses(), podman.netns()
        theirs = set(left.leases().items())
        assert bool(theirs) == (backend == "cni")
        assert {address for address, _ in theirs} <= inside
        sandboxes = run_pods(left.served.cri, 2)
        left.wipe()
        left.served.restart()
        wait_until(lambda: nothing_of(left, sandboxes), 60)

        assert podman.inspect()["NetworkSettings"] == known
        assert podman.addresses() == inside
        assert is_pinned(netns)
        assert names_port(nat_rules(), 31970)
        assert set(left.leases().items()) == theirs
    assert left.leases() == {}
    assert not names_port(nat_rules(), 31970)
    assert not netns.exists()
    shutil.rmtree(home)
