"""Each configuration in cni_conf_examples/, unchanged except for the directory of host-local's reservations."""

import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from integration.cni.conftest import HOST_ADDRESSES
from integration.conftest import NodeDirs
from integration.networks import names_port
from integration.node.netns import Netns
from shim.api.v1 import api_pb2 as pb
from shim.cni.arguments import EGRESS_BANDWIDTH, INGRESS_BANDWIDTH, INTERFACE, capability_args, cni_args
from shim.cni.cache import cached_attachments
from shim.cni.conf import NetworkConfig, choose, parse_network, read_directory
from shim.cni.plugin import PluginError
from shim.cni.plugins import Attachment, Plugins
from shim.cni.result import pod_ips, result_from_json

EXAMPLES = Path(__file__).parents[2] / "cni_conf_examples"
HOST_V4, HOST_V6 = (address.partition("/")[0] for address in HOST_ADDRESSES)
CONFIG = pb.PodSandboxConfig(
    metadata=pb.PodSandboxMetadata(name="web", namespace="shop", uid="u-1"),
    port_mappings=[pb.PortMapping(container_port=80, host_port=8080)],
)


@dataclass(frozen=True, slots=True)
class Pods:
    """Attaches pods of a host and reads the state that plugins leave on it."""

    host: Netns
    plugins: Plugins
    dirs: NodeDirs

    def attachment(self, example: str, pod: Netns, *, config: pb.PodSandboxConfig = CONFIG) -> Attachment:
        network = load(example)
        for plugin in network.conflist["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = str(self.dirs.cni_leases)
        return Attachment(
            conflist=network.conflist,
            container_id="c0ffee",
            netns=str(pod.path),
            ifname=INTERFACE,
            args=cni_args(config.metadata, sandbox_id="c0ffee"),
            capabilities=capability_args(config, pod_ranges=()),
        )

    def add(self, attachment: Attachment) -> Attachment:
        result = self.host.call(lambda: self.plugins.add(attachment))
        return msgspec.structs.replace(attachment, result=result)

    def delete(self, attachment: Attachment) -> None:
        self.host.call(lambda: self.plugins.delete(attachment))

    def reservations(self) -> set[str]:
        return {path.name for path in self.dirs.cni_leases.glob("*/*") if path.read_text().startswith("c0ffee")}

    def rules(self) -> str:
        return self.host.run("iptables-save") + self.host.run("ip6tables-save")

    def links(self) -> set[str]:
        """Return the names of the host's links."""
        return {line.split(": ")[1].partition("@")[0] for line in self.host.run("ip -o link").splitlines()}


@pytest.fixture
def pods(host: Netns, plugins: Plugins, node_dirs: NodeDirs) -> Pods:
    return Pods(host, plugins, node_dirs)


def load(example: str) -> NetworkConfig:
    return parse_network((EXAMPLES / example).read_bytes(), file=example)


def addresses(attachment: Attachment) -> list[str]:
    assert attachment.result is not None
    return pod_ips(result_from_json(attachment.result), ifname="eth0")


def served(pod: Netns, client: Netns, address: str, port: int) -> bytes:
    """Serve one greeting in the pod, and return the text that the client reads."""
    with pod.call(lambda: socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True)) as server:
        server.settimeout(10)
        connection = client.call(lambda: socket.create_connection((address, port), timeout=10))
        with connection, server.accept()[0] as accepted:
            accepted.sendall(b"hello from the pod")
            return connection.recv(100)


def test_every_example_is_valid_and_finds_its_plugins(node_dirs: NodeDirs) -> None:
    listing = read_directory(EXAMPLES)
    files = sorted(path.name for path in EXAMPLES.glob("*.conflist"))

    assert [entry.file for entry in listing.entries if isinstance(entry, NetworkConfig)] == files
    chosen = choose(listing, bin_dirs=[node_dirs.cni_bin]).network
    assert chosen is not None
    assert chosen.file == "10-bridge.conflist"


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("10-bridge.conflist", ["10.244.0.2"]),
        ("20-dual-stack.conflist", ["10.244.0.2", "fd00:10:244::2"]),
        ("30-ptp.conflist", ["10.244.0.2"]),
        ("40-bandwidth.conflist", ["10.244.0.2"]),
    ],
)
def test_a_pod_is_reachable_and_del_leaves_nothing(pods: Pods, pod: Netns, example: str, expected: list[str]) -> None:
    links = pods.links()
    attachment = pods.add(pods.attachment(example, pod))

    assert addresses(attachment) == expected
    assert all(address in pod.run("ip -o address show dev eth0") for address in expected)
    assert pods.reservations() == set(expected)
    for address in expected:
        assert served(pod, pods.host, address, 80) == b"hello from the pod"
    assert served(pod, pods.host, HOST_V4, 8080) == b"hello from the pod"
    assert "8080" in pods.rules()
    assert cached_attachments(pods.dirs.cni_cache, container_id="c0ffee") == [attachment]

    pods.delete(attachment)
    pods.delete(attachment)

    assert pods.reservations() == set()
    assert pods.links() - {"cni0"} == links
    assert [line for line in pods.rules().splitlines() if "8080" in line or "c0ffee" in line] == []
    assert cached_attachments(pods.dirs.cni_cache, container_id="c0ffee") == []


def test_dual_stack_host_ports_answer_on_both_families(pods: Pods, pod: Netns) -> None:
    attachment = pods.add(pods.attachment("20-dual-stack.conflist", pod))

    assert served(pod, pods.host, HOST_V6, 8080) == b"hello from the pod"

    pods.delete(attachment)


def test_bandwidth_annotations_shape_the_pods_traffic(pods: Pods, pod: Netns) -> None:
    config = pb.PodSandboxConfig()
    config.CopyFrom(CONFIG)
    config.annotations[INGRESS_BANDWIDTH] = "10M"
    config.annotations[EGRESS_BANDWIDTH] = "20M"
    before = pods.links()

    attachment = pods.add(pods.attachment("40-bandwidth.conflist", pod, config=config))

    shaped = pods.host.run("tc qdisc show")
    assert "rate 10Mbit" in shaped
    assert "rate 20Mbit" in shaped
    pods.delete(attachment)
    assert "rate" not in pods.host.run("tc qdisc show")
    assert pods.links() - {"cni0"} == before


def test_macvlan_puts_the_pod_on_the_network_of_its_master(pods: Pods, pod: Netns) -> None:
    attachment = pods.add(pods.attachment("50-macvlan.conflist", pod))

    assert addresses(attachment) == ["192.168.10.200"]
    assert "macvlan mode bridge" in pod.run("ip -d link show dev eth0")
    assert pods.reservations() == {"192.168.10.200"}
    pods.delete(attachment)
    assert pods.reservations() == set()
    assert "eth0" not in pod.run("ip -o link")


def test_del_without_the_namespace_releases_address_and_host_port(pods: Pods, pod: Netns) -> None:
    attachment = pods.add(pods.attachment("10-bridge.conflist", pod))
    gone = msgspec.structs.replace(attachment, netns=str(pod.path.with_name("gone")))

    pods.delete(gone)

    assert pods.reservations() == set()
    assert not names_port(pods.rules(), 8080)
    # The masquerading rule stays: this bridge plugin reads the address to remove from the namespace.


def test_an_add_that_fails_half_way_is_undone_by_del(pods: Pods, pod: Netns) -> None:
    attachment = pods.attachment("10-bridge.conflist", pod)
    attachment.conflist["plugins"].append({"type": "tuning", "sysctl": {"net.core.no_such_setting": "1"}})

    with pytest.raises(PluginError, match=r"tuning for sandbox c0ffee: .*no_such_setting"):
        pods.add(attachment)
    assert pods.reservations() == {"10.244.0.2"}
    assert "8080" in pods.rules()
    pods.delete(attachment)

    assert pods.reservations() == set()
    assert [line for line in pods.rules().splitlines() if "8080" in line or "c0ffee" in line] == []


def test_a_plugins_error_is_reported(pods: Pods, pod: Netns) -> None:
    attachment = pods.attachment("50-macvlan.conflist", pod)
    attachment.conflist["plugins"][0]["master"] = "absent0"

    with pytest.raises(PluginError, match=r"macvlan for sandbox c0ffee: Link not found") as raised:
        pods.add(attachment)

    assert (raised.value.plugin, raised.value.verb, raised.value.code) == ("macvlan", "ADD", 999)
    assert pods.reservations() == set()


def test_pod_ranges_of_the_cluster_give_an_address_of_each_family(pods: Pods, pod: Netns) -> None:
    attachment = pods.attachment("10-bridge.conflist", pod)
    bridge = attachment.conflist["plugins"][0]
    del bridge["ipam"]["ranges"]
    bridge["capabilities"] = {"ipRanges": True}
    attachment.capabilities.update(capability_args(CONFIG, pod_ranges=("10.99.1.0/24", "fd00:99:1::/64")))

    added = pods.add(attachment)

    assert addresses(added) == ["10.99.1.2", "fd00:99:1::2"]
    pods.delete(added)
    assert pods.reservations() == set()
