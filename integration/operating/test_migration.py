"""The commands of docs/migration.md, on pods in cri-dockerd's format, and on this server's pods for the way back."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import NAMESPACE, container_config, pod_config
from integration.networks import bridge, conflist, names_port, nat_rules
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.cni.conf import parse_network
from shim.cni.plugins import Attachment, Plugins

PAGE = (Path(__file__).parents[2] / "docs/migration.md").read_text()
UNITS = Path(__file__).parents[2] / "packaging/systemd"
LINK = "pods-moved"
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
LOOPBACK = {"cniVersion": "0.2.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}
"""The network that cri-dockerd also adds to each pod, under the same interface name (`network/cni/cni.go`)."""
HOST_PORT = 8080
LABELS = {"io.kubernetes.docker.type": "podsandbox", "io.kubernetes.container.name": "POD", "app": "old"}


class Shell:
    """Runs blocks of the page; calls of systemctl and pydockershim are only recorded, everything else is real."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        programs = directory / "programs"
        programs.mkdir()
        self._called = directory / "called"
        self._called.touch()
        for name in ("systemctl", "pydockershim"):
            program = programs / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._called}\n')
            program.chmod(0o755)
        search = [str(programs), *map(str, engine.binaries), os.environ["PATH"]]
        self._environ = {**os.environ, "PATH": ":".join(search), "DOCKER_HOST": engine.url, "HOME": str(directory)}

    def run(self, name: str, *, paths: Mapping[str, object] | None = None) -> str:
        """Run a block, with the `paths` of a node replaced; return its output."""
        [block] = re.findall(rf"<!-- commands: {re.escape(name)} -->\n```\n(.*?)```", PAGE, flags=re.DOTALL)
        for path, other in (paths or {}).items():
            assert path in block
            block = block.replace(path, str(other))
        reported = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], env=self._environ, capture_output=True, text=True, check=False
        )
        assert (reported.returncode, reported.stderr) == (0, ""), reported
        return reported.stdout

    def called(self) -> list[str]:
        """Return the calls of systemctl and pydockershim so far."""
        return self._called.read_text().splitlines()


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Shell:
    return Shell(engine, tmp_path)


@pytest.fixture
def moved(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Served]:  # noqa: ARG001 - images
    """Run a server whose `root_directory` was cri-dockerd's."""
    plugin = bridge(node_dirs.cni_leases, link=LINK, subnets=("10.97.0.0/16",))
    (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(plugin, PORTMAP))
    with own_link(LINK), serving(engine, node_dirs) as served:
        yield served


def pod_of_cri_dockerd(served: Served, images: Images, node: Node) -> str:
    """Run a pod as cri-dockerd does with CNI: container, cache entries of both networks, and checkpoint."""
    api = served.engine.api
    made: str = api.create_container(
        images.pause,
        host_config=api.create_host_config(network_mode="none"),
        name=f"k8s_POD_old_{NAMESPACE}_uid-old_0",
        labels={**LABELS, "annotation.note": "kept"},
    )["Id"]
    api.start(made)
    netns = f"/proc/{api.inspect_container(made)['State']['Pid']}/ns/net"
    args = [
        *(("IgnoreUnknown", "1"), ("K8S_POD_NAMESPACE", NAMESPACE), ("K8S_POD_NAME", "old")),
        ("K8S_POD_INFRA_CONTAINER_ID", made),
    ]
    mapping = {"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp", "hostIP": ""}
    text = (served.dirs.cni_conf / "10-pods.conflist").read_bytes()
    plugins = Plugins(bin_dirs=[node.tools.root / "usr/lib/cni"], cache_dir=served.dirs.cni_cache, timeout=60)
    for network in (LOOPBACK, parse_network(text, file="10-pods.conflist").conflist):
        capabilities = {} if network is LOOPBACK else {"portMappings": [mapping]}
        plugins.add(
            Attachment(
                conflist=network,
                container_id=made,
                netns=netns,
                ifname="eth0" if network is not LOOPBACK else "lo",
                args=args,
                capabilities=capabilities,
            )
        )
    port = {"protocol": "tcp", "container_port": 80, "host_port": HOST_PORT, "host_ip": ""}
    checkpoint = {
        "version": "v1",
        "name": "old",
        "namespace": NAMESPACE,
        "data": {"port_mappings": [port]},
        "checksum": 3712672205,
    }
    (served.dirs.state / "sandbox").mkdir(exist_ok=True)
    (served.dirs.state / "sandbox" / made).write_text(json.dumps(checkpoint))
    return made


def test_pods_of_cri_dockerd_with_host_ports_are_adopted_and_leave_nothing(
    moved: Served, images: Images, node: Node, shell: Shell, tmp_path: Path
) -> None:
    before = moved.snapshot()
    moved.server.stop()
    old = pod_of_cri_dockerd(moved, images, node)
    assert names_port(nat_rules(), HOST_PORT)

    moved.restart()
    shell.run("switch", paths={"/tmp/pods-before": tmp_path / "pods-before"})

    assert shell.called() == [
        "systemctl disable --now cri-docker.socket cri-docker.service",
        "systemctl enable --now pydockershim.service",
        "pydockershim doctor",
    ]
    wait_until(lambda: old in [sandbox.id for sandbox in moved.cri.sandboxes()])
    status = moved.cri.sandbox_status(old)
    assert status.state == pb.SANDBOX_READY
    assert status.metadata.name == "old"
    assert (dict(status.labels), dict(status.annotations)) == ({"app": "old"}, {"note": "kept"})
    assert status.network.ip.startswith("10.97.")
    assert names_port(nat_rules(), HOST_PORT)

    moved.cri.stop(old)
    moved.cri.remove(old)
    assert not names_port(nat_rules(), HOST_PORT)
    assert list(moved.dirs.cni_cache.glob(f"results/*{old}*")) == []
    assert not (moved.dirs.state / "sandbox" / old).exists()
    assert moved.snapshot().leases == before.leases


def test_only_the_chains_of_kubenet_are_removed(shell: Shell) -> None:
    before = nat_rules()
    for words in (
        *("-N KUBE-HOSTPORTS", "-N KUBE-HP-ABCDEFGHIJKLMNOP", "-N KUBE-SERVICES", "-A KUBE-SERVICES -j RETURN"),
        "-A PREROUTING -m addrtype --dst-type LOCAL -j KUBE-HOSTPORTS",
        "-A KUBE-HOSTPORTS -p tcp -m tcp --dport 8080 -j KUBE-HP-ABCDEFGHIJKLMNOP",
        "-A KUBE-HP-ABCDEFGHIJKLMNOP -p tcp -m tcp -j DNAT --to-destination 10.99.0.2:80",
    ):
        subprocess.run(["iptables", "-t", "nat", *words.split()], check=True)

    shell.run("chains of kubenet")

    after = nat_rules().splitlines()
    subprocess.run(["iptables", "-t", "nat", "-F", "KUBE-SERVICES"], check=True)
    subprocess.run(["iptables", "-t", "nat", "-X", "KUBE-SERVICES"], check=True)
    assert sorted(after) == sorted([*before.splitlines(), "-N KUBE-SERVICES", "-A KUBE-SERVICES -j RETURN"])


def test_pods_keep_running_after_the_server_is_removed(moved: Served, images: Images, shell: Shell) -> None:
    logs = moved.dirs.logs / "going"
    going = pod_config("going", log_directory=str(logs))
    with_port = pod_config("with-port", port_mappings=[pb.PortMapping(container_port=80, host_port=HOST_PORT)])
    sandbox, other = moved.cri.run(going), moved.cri.run(with_port)
    script = ("sh", "-c", "echo before; read line < /dev/null; while ! [ -e /go ]; do sleep 0.1; done; echo after; cat")
    config = container_config("c", image=images.busybox, command=script, log_path="c.log", stdin=True)
    container = moved.cri.create(sandbox, config, pod=going)
    moved.cri.start(container)
    wait_until(lambda: "before" in (logs / "c.log").read_text())

    name = f"/k8s_POD_with-port_{NAMESPACE}_"
    assert [line[: len(name)] for line in shell.run("pods with host ports").splitlines()] == [name]
    moved.cri.stop(other)
    moved.cri.remove(other)
    assert shell.run("pods with host ports") == ""

    moved.server.stop()
    shell.run("back")
    moved.engine.api.exec_start(moved.engine.api.exec_create(container, ["touch", "/go"])["Id"])
    wait_until(lambda: "after" in (logs / "c.log").read_text())
    assert [json.loads(line)["log"] for line in (logs / "c.log").read_text().splitlines()] == ["before\n", "after\n"]
    assert "before" in (logs / "c.log.pydockershim").read_text()
    assert shell.called() == [
        "systemctl disable --now pydockershim.socket pydockershim.service",
        "systemctl enable --now cri-docker.socket cri-docker.service",
    ]

    # cri-dockerd then kills the container, and runs DEL with the current configuration. The server stands in for it
    # here.
    moved.restart()
    moved.cri.stop(sandbox)
    moved.cri.remove(sandbox)


def test_leftovers_of_the_server_are_removed(moved: Served, shell: Shell) -> None:
    sandbox = moved.cri.run(pod_config("last"))
    pin = moved.dirs.netns / f"cri-{sandbox}"
    moved.server.stop()
    assert pin.exists()
    moved.engine.api.remove_container(sandbox, force=True)

    shell.run("remains", paths={"/run/netns/": f"{moved.dirs.netns}/", "/var/lib/pydockershim": moved.dirs.state})

    assert not pin.exists()
    assert str(pin) not in Path("/proc/self/mountinfo").read_text()
    assert not moved.dirs.state.exists()
    moved.restart()


def test_the_units_named_by_the_page_exist() -> None:
    named = set(re.findall(r"pydockershim\.(?:service|socket)", PAGE))

    assert named
    assert all((UNITS / name).is_file() for name in named)
