"""Nodes without a network add-on: configuration from a template, pods with only loopback, pods of cri-dockerd."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import NAMESPACE, container_config, pod_config
from integration.networks import bridge, conflist, reserved
from integration.node.engine import Engine, remove_link
from integration.node.isolation import Node
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.cni.conf import parse_network
from shim.cni.plugins import Attachment, Plugins
from shim.cni.template import FILE
from shim.sandbox import cri_dockerd_files

EXAMPLE = Path(__file__).parents[2] / "cni_conf_examples" / "kubenet.conflist.template"
FIRST, SECOND = "10.98.1.0/24,fd00:98:1::/64", "10.98.2.0/24,fd00:98:2::/64"
LABELS = {"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.container.name": "POD"}


def network_ready(served: Served) -> bool:
    conditions = served.cri.runtime.Status(pb.StatusRequest()).status.conditions
    return next(condition.status for condition in conditions if condition.type == "NetworkReady")


def set_ranges(served: Served, ranges: str) -> None:
    config = pb.RuntimeConfig(network_config=pb.NetworkConfig(pod_cidr=ranges))
    served.cri.runtime.UpdateRuntimeConfig(pb.UpdateRuntimeConfigRequest(runtime_config=config))


def addresses(served: Served, sandbox: str) -> list[str]:
    network = served.cri.sandbox_status(sandbox).network
    return [network.ip, *(more.ip for more in network.additional_ips)]


@pytest.fixture
def templated(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Served]:  # noqa: ARG001 - images
    template = node_dirs.state.with_name("template")
    text = EXAMPLE.read_text().replace(
        '"type": "host-local",', f'"type": "host-local", "dataDir": "{node_dirs.cni_leases}",'
    )
    template.write_text(text)
    try:
        with serving(engine, node_dirs, cni_conf_template=template, pod_cidr=FIRST) as served:
            yield served
    finally:
        remove_link("cbr0")


def test_pods_get_addresses_from_the_kubelets_ranges(templated: Served) -> None:
    before = templated.snapshot()
    old = templated.cri.run(pod_config("old"))
    assert [address.rpartition(".")[0] or address.rpartition(":")[0] for address in addresses(templated, old)] == [
        "10.98.1",
        "fd00:98:1:",
    ]
    set_ranges(templated, SECOND)
    wait_until(lambda: "10.98.2.0/24" in (templated.dirs.cni_conf / FILE).read_text())

    def moved() -> bool:
        sandbox = templated.cri.run(pod_config("new"))
        given = addresses(templated, sandbox)
        templated.cri.remove(sandbox)
        return given[0].startswith("10.98.2.") and given[1].startswith("fd00:98:2::")

    wait_until(moved)
    templated.cri.remove(old)
    assert before.added(templated.snapshot()) == ["state: pod-cidr"]


def test_a_restart_restores_the_configuration_before_the_kubelet_connects(templated: Served) -> None:
    set_ranges(templated, SECOND)
    templated.server.kill()
    (templated.dirs.cni_conf / FILE).unlink()

    templated.restart()

    assert network_ready(templated)
    ranges = json.loads((templated.dirs.cni_conf / FILE).read_text())["plugins"][0]["ipam"]["ranges"]
    assert ranges == [[{"subnet": subnet}] for subnet in SECOND.split(",")]


@pytest.fixture
def lonely(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Served]:  # noqa: ARG001 - images
    with serving(engine, node_dirs, network_plugin="none") as served:
        yield served


def test_a_pod_without_a_network_has_only_loopback(lonely: Served, images: Images) -> None:
    before = lonely.snapshot()
    config = pod_config("lonely")
    assert network_ready(lonely)
    sandbox = lonely.cri.run(config)
    container = lonely.cri.create(sandbox, container_config("main", image=images.busybox), pod=config)
    lonely.cri.start(container)

    shown = lonely.cri.exec(container, "ip", "address").stdout.decode()
    assert "127.0.0.1/8" in shown
    assert "::1/128" in shown
    assert "eth0" not in shown
    assert not lonely.cri.sandbox_status(sandbox).HasField("network")
    assert list(lonely.dirs.netns.glob("cri-*")) == []
    lonely.cri.remove(sandbox)
    assert lonely.snapshot() == before


def test_pods_without_a_network_survive_a_lost_state_directory(lonely: Served) -> None:
    sandbox = lonely.cri.run(pod_config("lonely"))
    lonely.server.kill()
    for path in (lonely.dirs.state / "sandboxes").iterdir():
        path.unlink()

    lonely.restart()

    assert lonely.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY


def pod_of_cri_dockerd(served: Served, images: Images, *, mode: str, root: Path) -> str:
    """Make a pause container with the name and labels of cri-dockerd, and its checkpoint."""
    api = served.engine.api
    host = api.create_host_config(network_mode=mode)
    made = api.create_container(
        images.pause, host_config=host, name=f"k8s_POD_old_{NAMESPACE}_uid-old_0", labels=LABELS
    )["Id"]
    api.start(made)
    (root / "sandbox").mkdir(parents=True, exist_ok=True)
    checkpoint = {"version": "v1", "name": "old", "namespace": NAMESPACE, "data": {}, "checksum": 2305795928}
    (root / "sandbox" / made).write_text(json.dumps(checkpoint))
    wait_until(lambda: made in [sandbox.id for sandbox in served.cri.sandboxes()])
    return str(made)


def test_a_pod_of_cri_dockerd_without_a_plugin_leaves_nothing(lonely: Served, images: Images) -> None:
    before = lonely.snapshot()
    sandbox = pod_of_cri_dockerd(lonely, images, mode="default", root=cri_dockerd_files.ROOT)

    lonely.cri.stop(sandbox)
    lonely.cri.remove(sandbox)

    assert not (cri_dockerd_files.ROOT / "sandbox" / sandbox).exists()
    assert lonely.snapshot() == before


def leased_to(directory: Path) -> set[str]:
    return {container for address, container in reserved(directory).items() if address.startswith("10.")}


@pytest.mark.parametrize("cached", [True, False], ids=["in the cache", "not in the cache"])
def test_a_pod_of_kubenet_leaves_nothing(lonely: Served, images: Images, node: Node, cached: bool) -> None:
    before = lonely.snapshot()
    sandbox = pod_of_cri_dockerd(lonely, images, mode="none", root=lonely.dirs.state)
    leases = Path("/var/lib/cni/networks")
    pid = lonely.engine.api.inspect_container(sandbox)["State"]["Pid"]
    text = conflist(bridge(leases, link="cbr0", subnets=("10.99.0.0/24",)), name="kubenet")
    network = parse_network(text.replace("1.0.0", "0.3.1").encode(), file="x.conflist").conflist
    cache = lonely.dirs.cni_cache if cached else lonely.dirs.cni_cache.with_name("lost")
    plugins = Plugins(bin_dirs=[node.tools.root / "usr/lib/cni"], cache_dir=cache, timeout=60)
    netns = f"/proc/{pid}/ns/net"
    for conf, ifname in ((network, "eth0"), (LOOPBACK, "lo")):
        plugins.add(Attachment(conflist=conf, container_id=sandbox, netns=netns, ifname=ifname))
    assert leased_to(leases / "kubenet") == {sandbox}

    lonely.cri.stop(sandbox)
    lonely.cri.remove(sandbox)

    assert leased_to(leases / "kubenet") == set()
    assert list(lonely.dirs.cni_cache.glob("results/*")) == []
    shown = subprocess.run(["ip", "-o", "link", "show", "master", "cbr0"], capture_output=True, check=True)
    remove_link("cbr0")
    assert shown.stdout == b""
    # No pod of this server needs a pin, but the directory exists.
    assert [line for line in before.added(lonely.snapshot()) if line != f"mounts: {lonely.dirs.netns}"] == []


LOOPBACK = {"cniVersion": "0.2.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}
