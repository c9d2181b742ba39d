import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.cni.cache import Attachment, Owner, write_cached
from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.forwarding import check_forwarding
from shim.sandbox.network import docker_socket

BRIDGE = {
    "type": "bridge",
    "bridge": "cni0",
    "hairpinMode": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]},
}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
ROUTES = "Iface\tDestination\tGateway\n{}"
DEFAULT = "eth0\t00000000\t0101A8C0\n"


class Node:
    """A node whose iptables and nft say what the test has them say, with its settings in files."""

    def __init__(self, config: Config, home: Path) -> None:
        self.config = config
        self._home = home
        for setting in (
            "bridge/bridge-nf-call-iptables",
            "bridge/bridge-nf-call-ip6tables",
            "ipv6/conf/all/forwarding",
        ):
            self.set(setting, 1)
        self.set_routes(DEFAULT)
        self.program("iptables", "echo 'iptables v1.8.9 (nf_tables)'")

    def set(self, setting: str, value: int) -> None:
        path = self._home / "sys/net" / setting
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def set_routes(self, lines: str) -> None:
        path = self._home / "proc/thread-self/net/route"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ROUTES.format(lines))

    def program(self, name: str, body: str) -> None:
        (self._home / "programs").mkdir(exist_ok=True)
        path = self._home / "programs" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def rules(self, *rules: str) -> None:
        lines = "\n".join(rules)
        self.program("iptables", f"[ $1 = --version ] && echo '(nf_tables)' && exit\ncat <<'EOT'\n{lines}\nEOT")

    def network(self, *plugins: dict[str, Any]) -> None:
        self.config.cni_conf_dir.mkdir(exist_ok=True)
        self.config.cni_bin_dir[0].mkdir(exist_ok=True)
        for plugin in plugins:
            (self.config.cni_bin_dir[0] / plugin["type"]).touch(mode=0o755)
        text = json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
        (self.config.cni_conf_dir / "10-pods.conflist").write_text(text)

    def findings(self) -> list[Finding]:
        return list(check_forwarding(self.config, sysctls=self._home / "sys", proc=self._home / "proc"))

    def troubles(self) -> list[Finding]:
        return [finding for finding in self.findings() if finding.level != "ok"]


@pytest.fixture
def node(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}/programs{os.pathsep}/bin:/usr/bin")
    return Node(config, tmp_path)


def test_a_node_without_a_network_has_nothing_to_forward(node: Node) -> None:
    assert node.findings() == []


def test_pods_without_a_network_have_nothing_to_forward(node: Node) -> None:
    node.network(BRIDGE)
    node.rules("-P FORWARD DROP")
    node.config = msgspec.structs.replace(node.config, network_plugin="none")

    assert node.findings() == []


def test_pods_on_the_nodes_own_network_are_not_forwarded(node: Node) -> None:
    node.network({"type": "macvlan", "master": "eth0"})
    node.rules("-P FORWARD DROP")

    (finding,) = node.findings()

    assert (finding.level, finding.subject) == ("ok", "pod traffic")


def test_filters_of_an_add_on_are_its_own(node: Node) -> None:
    node.network({"type": "mesh"})
    node.rules("-P FORWARD DROP")

    assert node.troubles() == []
    assert [finding.text for finding in node.findings()] == ["left to the plugins of network pods"]


@pytest.mark.parametrize(
    "rule",
    [
        "-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT",
        "-A FORWARD -i cni0 -j ACCEPT",
        "-A FORWARD -j ACCEPT",
    ],
)
def test_a_rule_of_the_administrator_that_accepts_pods_is_enough(node: Node, rule: str) -> None:
    node.network(BRIDGE)
    node.rules("-P FORWARD DROP", rule)

    assert node.troubles() == []


@pytest.mark.parametrize(
    "rule",
    [
        "-A FORWARD -s 10.245.0.0/16 -j ACCEPT",
        "-A FORWARD -i docker0 -j ACCEPT",
        "-A DOCKER -j ACCEPT",
        "-A FORWARD -s 10.244.0.0/16 -p tcp -j ACCEPT",
        "-A FORWARD -s fd00::/8 -j ACCEPT",
    ],
)
def test_rules_that_accept_other_packets_are_not(node: Node, rule: str) -> None:
    node.network(BRIDGE)
    node.rules("-P FORWARD DROP", rule)

    (trouble,) = node.troubles()

    assert trouble.subject == "forward chain"
    assert trouble.advice.startswith("iptables -P FORWARD ACCEPT; ")
    assert str(node.config.cni_conf_dir / "10-pods.conflist") in trouble.advice


def test_the_plugin_that_accepts_pods_is_enough(node: Node) -> None:
    node.network(BRIDGE, PORTMAP, {"type": "firewall"})
    node.rules("-P FORWARD DROP")

    assert node.troubles() == []


def test_rules_that_cannot_be_listed_are_no_fault_of_the_node(node: Node) -> None:
    node.network(BRIDGE)
    node.program("iptables", "exit 4")
    node.program("nft", "echo no JSON")

    assert node.troubles() == []


def test_the_chain_of_iptables_is_not_named_twice(node: Node) -> None:
    chain = {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}
    node.network(BRIDGE, {"type": "firewall"})
    node.program("nft", f"echo '{json.dumps({'nftables': [{'metainfo': {}}, {'chain': chain}]})}'")

    assert node.troubles() == []


def test_an_interface_whose_name_has_a_dot(node: Node) -> None:
    node.network(BRIDGE, PORTMAP)
    node.set_routes(DEFAULT + "eth0.100\t0000A8C0\t00000000\ncni0\t0000F40A\t00000000\n")
    node.set("ipv4/conf/eth0.100/rp_filter", 1)
    node.set("ipv4/conf/cni0/rp_filter", 1)

    (trouble,) = node.troubles()

    assert trouble.advice.startswith("sysctl -w net/ipv4/conf/eth0.100/rp_filter=2; ")


def test_an_uplink_that_is_not_strict(node: Node) -> None:
    node.network(BRIDGE, PORTMAP)
    node.set_routes(DEFAULT + "eth1\t0000A8C0\t00000000\n")
    node.set("ipv4/conf/all/rp_filter", 1)
    node.set("ipv4/conf/eth1/rp_filter", 2)

    assert node.troubles() == []


def test_host_ports_whose_rules_are_gone_are_named(node: Node) -> None:
    node.network(BRIDGE, PORTMAP)
    for number, (name, port) in enumerate({"web": 31080, "api": 31081}.items()):
        attachment = Attachment(
            conflist={"cniVersion": "1.0.0", "name": "pods", "plugins": [BRIDGE, PORTMAP]},
            container_id=str(number) * 64,
            netns="",
            ifname="eth0",
            args=[("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", name)],
            capabilities={"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]},
            owner=Owner(docker=docker_socket(node.config), sandbox=name),
        )
        write_cached(node.config.cni_cache_dir, attachment, result=None)
    node.rules("-P PREROUTING ACCEPT", "-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 31081 -j CNI-DN-1")

    (finding,) = node.troubles()
    assert finding.text.startswith("no rule for port 31080 of pod shop/web")
    assert finding.advice.startswith("kubectl delete pod --namespace shop web")
    node.network(BRIDGE, {**PORTMAP, "type": "cilium-cni"})
    assert node.troubles() == []
