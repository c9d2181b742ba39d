"""kubeadm by hand on two machines: each command of docs/kubeadm.md, with the configuration of that page."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.kind.conftest import PROGRAMS_VARIABLE
from integration.kind.image import CHECKOUT
from integration.kind.kubernetes import CLUSTER_IMAGE, CONTROL_PLANE, Host
from integration.kind.node import NETWORK, KindNode, booted
from integration.node.engine import Engine
from integration.node.images import load, pause_image
from integration.node.isolation import Node, new_home
from integration.node.registry import Registry
from integration.waiting import wait_until

pytestmark = pytest.mark.skipif(PROGRAMS_VARIABLE not in os.environ, reason="needs BIN=directory with Kubernetes")

PAGE = (CHECKOUT / "docs/kubeadm.md").read_text()
CRI_SOCKET = ("--cri-socket", "unix:///run/cri-dockerd.sock")
SECONDS = 180.0
_REGISTRY = "registry.k8s.io"
_PROXY = """\
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0}
"""
_DAEMON = """\
import json, pathlib
file = pathlib.Path("/etc/docker/daemon.json")
file.write_text(json.dumps({**json.loads(file.read_text()), "insecure-registries": ["registry.k8s.io"]}))
"""


@dataclass(frozen=True, slots=True)
class Machines:
    """Two machines with a registry, whose Docker has loaded no image yet."""

    first: KindNode
    second: KindNode
    ignored: str
    """The flag for preflight errors that kubeadm must ignore here."""


@pytest.fixture(scope="module")
def machines(host: Host, node: Node) -> Iterator[Machines]:
    engine = host.engine
    with ExitStack() as undo:
        made = [
            undo.enter_context(booted(KindNode(engine, host.client, f"machine-{number}", image=CLUSTER_IMAGE)))
            for number in (1, 2)
        ]
        gateway = gateway_of(engine, NETWORK)
        undo.enter_context(registry_of_kubernetes(node, engine, host.references, address=f"{gateway}:80"))
        for each in made:
            each.output("sysctl", "-w", "net.ipv4.ip_forward=1")  # Docker of these nodes does not set it
            use_registry(each, gateway)
        yield Machines(made[0], made[1], ignored_errors())


def gateway_of(engine: Engine, network: str) -> str:
    return str(engine.api.inspect_network(network)["IPAM"]["Config"][0]["Gateway"])


@contextmanager
def registry_of_kubernetes(node: Node, engine: Engine, references: Sequence[str], *, address: str) -> Iterator[None]:
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=new_home("kubernetes"), address=address)
    registry.start()
    try:
        image = pause_image(node.busybox)
        load(engine.api, image)
        for reference in [*references, image.reference]:
            registry.push(engine.api, reference, name=reference.removeprefix(f"{_REGISTRY}/"))
        yield
    finally:
        registry.stop()


def use_registry(machine: KindNode, address: str) -> None:
    """Point the name of the public registry to ours, and remove all images that kubeadm should pull."""
    machine.output("sh", "-c", f"echo {address} {_REGISTRY} >>/etc/hosts")
    machine.output("python3", "-c", _DAEMON)
    machine.output("sh", "-c", "docker rmi --force $(docker images --quiet registry.k8s.io/*)")
    # A kind node has the pause image of its containerd; here it is the server's default, which kubeadm pulls.
    machine.output("sed", "-i", "/^pod_infra_container_image/d", "/etc/pydockershim/config.toml")
    machine.output("systemctl", "restart", "docker.service", "pydockershim.service")
    machine.wait_serving()


def ignored_errors() -> str:
    """Return the flag that docs/kubeadm.md prescribes for cgroup v1."""
    return "" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "--ignore-preflight-errors=SystemVerification"


def configuration() -> str:
    """Return the page's configuration, with its additions for cgroup v1.

    In a container kube-proxy may not set the kernel's number of connections.
    """
    found = re.search(r"```yaml\n(# kubeadm\.yaml\n.*?)```", PAGE, flags=re.DOTALL)
    assert found
    return found[1] + ("failCgroupV1: false\n" if ignored_errors() else "") + _PROXY


def kubectl(machines: Machines, *words: str) -> str:
    return machines.first.output("env", "KUBECONFIG=/etc/kubernetes/admin.conf", "kubectl", *words)


def ready(machines: Machines, number: int) -> bool:
    return kubectl(machines, "get", "nodes", "--no-headers").split().count("Ready") == number


def containers(machine: KindNode, *, of: str = "^/k8s_") -> list[str]:
    return machine.output("docker", "ps", "--all", "--quiet", "--filter", f"name={of}").split()


def test_each_command_of_the_page_works(machines: Machines) -> None:
    first, second = machines.first, machines.second
    ignored = [machines.ignored] if machines.ignored else []
    version = first.output("kubeadm", "version", "-o", "short").strip()
    first.output("cp", "/dev/stdin", "/root/kubeadm.yaml", stdin=configuration().encode())

    pulled = first.output("kubeadm", "config", "images", "pull", "--config", "/root/kubeadm.yaml")
    assert "registry.k8s.io/pause:" in pulled
    images = first.output("docker", "images", "--format", "{{.Repository}}").split()
    assert {f"{_REGISTRY}/{name}" for name in (*CONTROL_PLANE, "etcd", "pause")} <= set(images)

    first.output("kubeadm", "init", "--config", "/root/kubeadm.yaml", *ignored)
    wait_until(lambda: ready(machines, 1), SECONDS)

    join = first.output("kubeadm", "token", "create", "--print-join-command").split()
    second.output(*join, *CRI_SOCKET, *ignored)
    wait_until(lambda: ready(machines, 2), SECONDS)
    kubectl(machines, "wait", "pods", "-A", "-l", "k8s-app=kube-proxy", "--for=condition=Ready", "--timeout=180s")

    before = containers(second, of="_kube-proxy")  # the stand-in of CoreDNS exits again and again
    assert len(before) == 2
    first.output("kubeadm", "upgrade", "apply", version, "--yes", *ignored)
    second.output("kubeadm", "upgrade", "node", *ignored)
    for each in (first, second):
        each.output("systemctl", "restart", "kubelet")
    wait_until(lambda: ready(machines, 2), SECONDS)
    assert containers(second, of="_kube-proxy") == before

    kubectl(machines, "drain", "machine-2", "--ignore-daemonsets", "--delete-emptydir-data")
    for each in (second, first):
        each.output("kubeadm", "reset", "--force", *CRI_SOCKET)
        assert containers(each) == []
        assert each.output("sh", "-c", "ls /var/lib/cni/networks/kubenet 2>/dev/null | grep -v '^l' || true") == ""
        assert each.output("sh", "-c", "ls /run/netns 2>/dev/null || true").split() == []
        assert each.output("ls", "/var/lib/pydockershim/sandboxes").split() == []
