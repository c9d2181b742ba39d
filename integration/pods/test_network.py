"""The network of pods: CNI plugins provide it, and every address and port is released."""

import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Images, Served
from integration.cri import HOST_NETWORK, NAMESPACE
from integration.networks import BRIDGE, bridge, conflist, names_port, nat_rules, reserved
from integration.node.control_groups import path_below
from integration.node.engine import remove_link
from integration.node.isolation import NODE_ADDRESSES, OUTSIDE, Node
from integration.pods.faulty_plugin import TYPE, FaultyPlugin
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NODE_ADDRESS = NODE_ADDRESSES[0].partition("/")[0]
PAGE = "it works\n"
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def network_message(served: Served) -> str:
    """Return the message of the NetworkReady condition."""
    conditions = served.cri.runtime.Status(pb.StatusRequest()).status.conditions
    return next(c.message for c in conditions if c.type == "NetworkReady")


@contextmanager
def in_force(served: Served, *plugins: dict[str, Any], name: str) -> Iterator[Path]:
    """Put a network before the usual one while the block runs; yields its file."""
    path = served.dirs.cni_conf / f"00-{name}.conflist"
    path.write_text(conflist(*plugins, name=name))
    wait_until(lambda: f"network {name} of {path}" in network_message(served))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        wait_until(lambda: "network pods of" in network_message(served))
        for plugin in plugins:
            if plugin.get("bridge") not in {None, BRIDGE}:
                remove_link(plugin["bridge"])


def reservations(served: Served, network: str = "pods") -> dict[str, str]:
    """Return host-local's reservations: address to container id."""
    directory = served.dirs.cni_leases / network
    return reserved(directory)


def fetch(address: str, port: int) -> str:
    """Fetch the page of a web server; empty without a listener."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except ConnectionRefusedError:
        return ""
    finally:
        connection.close()


def web_server(kubelet: Kubelet, pod: Pod) -> str:
    """Start a web server on port 8080 of a pod; return the pod's address once it answers."""
    kubelet.started(pod, "httpd", "-f", "-p", "8080", "-h", "/var/www")
    address = kubelet.cri.sandbox_status(pod.id).network.ip
    wait_until(lambda: fetch(address, 8080))
    return address


# --- addresses --------------------------------------------------------------------------------------------


def test_the_address_is_reserved_for_the_sandbox_and_released(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    address = kubelet.cri.sandbox_status(pod.id).network.ip
    assert address.startswith("10.89.")
    assert reservations(served)[address] == pod.id

    kubelet.cri.stop(pod.id)

    assert address not in reservations(served)
    assert kubelet.cri.sandbox_status(pod.id).network.ip == ""


def test_a_container_has_the_address_and_a_loopback(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    address = kubelet.cri.sandbox_status(pod.id).network.ip

    seen = kubelet.cri.exec(kubelet.started(pod), "ip", "-o", "address").stdout.decode()

    assert re.search(rf"eth0\s+inet {re.escape(address)}/16 ", seen)
    assert re.search(r"lo\s+inet 127\.0\.0\.1/8 ", seen)


def test_pods_and_the_node_reach_each_other(kubelet: Kubelet) -> None:
    server, client = kubelet.pod(), kubelet.pod()
    address = web_server(kubelet, server)

    assert fetch(address, 8080) == PAGE
    answer = kubelet.cri.exec(kubelet.started(client), "wget", "-q", "-O", "-", f"http://{address}:8080/")
    assert answer.stdout.decode() == PAGE


def test_all_addresses_are_reported_in_the_order_of_the_plugin(kubelet: Kubelet, served: Served) -> None:
    subnets = ("10.90.0.0/24", "fd00:90::/64")
    with in_force(served, bridge(served.dirs.cni_leases, subnets=subnets, link="dual0"), name="dual"):
        pod = kubelet.pod()
        network = kubelet.cri.sandbox_status(pod.id).network
        assert network.ip.startswith("10.90.0.")
        assert [extra.ip[:8] for extra in network.additional_ips] == ["fd00:90:"]
        assert len(reservations(served, "dual")) == 2
        kubelet.cri.remove(pod.id)
        assert reservations(served, "dual") == {}


def test_the_primary_address_is_the_plugins_first(kubelet: Kubelet, served: Served) -> None:
    subnets = ("fd00:91::/64", "10.91.0.0/24")
    with in_force(served, bridge(served.dirs.cni_leases, subnets=subnets, link="dual1"), name="six-first"):
        network = kubelet.cri.sandbox_status(kubelet.pod().id).network

        assert network.ip.startswith("fd00:91:")
        assert [extra.ip[:8] for extra in network.additional_ips] == ["10.91.0."]


# --- capabilities -----------------------------------------------------------------------------------------


def fetch_from_outside(node: Node, address: str, port: int) -> str:
    """Fetch the page from another host."""
    argv = ["nsenter", f"--net={OUTSIDE}", str(node.busybox), "wget", "-q", "-O", "-", f"http://{address}:{port}/"]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout


def test_a_host_port_is_open_while_the_pod_runs(kubelet: Kubelet, node: Node) -> None:
    mapping = pb.PortMapping(container_port=8080, host_port=18080, protocol=pb.TCP)
    pod = kubelet.pod(port_mappings=[mapping])
    web_server(kubelet, pod)

    assert fetch(NODE_ADDRESS, 18080) == PAGE
    assert fetch_from_outside(node, NODE_ADDRESS, 18080) == PAGE
    assert "--dport 18080" in nat_rules()
    kubelet.cri.stop(pod.id)
    assert not names_port(nat_rules(), 18080)


def test_a_host_port_of_an_address_is_open_on_that_address_only(kubelet: Kubelet) -> None:
    mapping = pb.PortMapping(container_port=8080, host_port=18081, host_ip=NODE_ADDRESS)
    pod = kubelet.pod(port_mappings=[mapping, pb.PortMapping(container_port=9090)])
    web_server(kubelet, pod)

    assert fetch(NODE_ADDRESS, 18081) == PAGE
    assert fetch("127.0.0.1", 18081) == ""
    assert not names_port(nat_rules(), 9090)


def test_a_host_network_pod_maps_nothing(kubelet: Kubelet) -> None:
    before = nat_rules()

    kubelet.pod(port_mappings=[pb.PortMapping(container_port=8080, host_port=18082)], linux=HOST_NETWORK)

    assert nat_rules() == before


def test_bandwidth_annotations_shape_the_interface(kubelet: Kubelet, served: Served) -> None:
    shaper = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
    with in_force(served, bridge(served.dirs.cni_leases), shaper, name="shaped"):
        pod = kubelet.pod(annotations={"kubernetes.io/ingress-bandwidth": "8M"})
        shaped = subprocess.run(["tc", "qdisc", "show"], check=True, capture_output=True, text=True).stdout
        assert "rate 8Mbit" in shaped
        kubelet.cri.remove(pod.id)


Reported = Callable[[], tuple[dict[str, str], dict[str, Any]]]


@contextmanager
def recording_plugin(served: Served, directory: Path, *capabilities: str) -> Iterator[Reported]:
    """Run pods with a recording plugin; yields a reader of the last ADD's environment and configuration."""
    plugin = FaultyPlugin(directory, real=served.dirs.cni_bin / "bridge")
    binary = served.dirs.cni_more_bin / TYPE
    binary.symlink_to(directory / TYPE)
    network = bridge(
        served.dirs.cni_leases,
        kind=TYPE,
        link="told0",
        capabilities=dict.fromkeys(capabilities, True),
        # host-local adds the ranges of the capability to those in the file.
        subnets=() if "ipRanges" in capabilities else ("10.92.0.0/24",),
    )

    def of_last_add() -> tuple[dict[str, str], dict[str, Any]]:
        environment, configuration = plugin.seen("ADD")
        return environment, json.loads(configuration)

    with in_force(served, network, name="args"):
        yield of_last_add
    binary.unlink()


def test_plugins_get_the_identity_of_the_pod(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    with recording_plugin(served, tmp_path) as reported:
        pod = kubelet.pod()
        environment, configuration = reported()
        kubelet.cri.remove(pod.id)

    metadata = pod.config.metadata
    assert environment["CNI_ARGS"] == (
        f"IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={metadata.name};"
        f"K8S_POD_INFRA_CONTAINER_ID={pod.id};K8S_POD_UID={metadata.uid}"
    )
    assert environment["CNI_CONTAINERID"] == pod.id
    assert environment["CNI_NETNS"] == str(served.dirs.netns / f"cri-{pod.id}")
    assert environment["CNI_IFNAME"] == "eth0"
    assert configuration["name"] == "args"
    assert "capabilities" not in configuration
    assert "runtimeConfig" not in configuration


def test_plugins_get_the_capabilities_of_the_pod(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    dns = pb.DNSConfig(servers=["10.96.0.10"], searches=["a.test"])
    mapping = pb.PortMapping(container_port=80, host_port=18083, protocol=pb.UDP)
    annotations = {"k8s.v1.cni.cncf.io/networks": "[]"}
    parent = path_below(served.engine.cgroup_parent, "told")
    capabilities = ("io.kubernetes.cri.pod-annotations", "dns", "portMappings", "cgroupPath")
    with recording_plugin(served, tmp_path, *capabilities) as reported:
        linux = pb.LinuxPodSandboxConfig(cgroup_parent=parent)
        pod = kubelet.pod(annotations=annotations, dns_config=dns, port_mappings=[mapping], linux=linux)
        _, configuration = reported()
        kubelet.cri.remove(pod.id)

    assert configuration["runtimeConfig"] == {
        "io.kubernetes.cri.pod-annotations": annotations,
        "dns": {"servers": ["10.96.0.10"], "searches": ["a.test"], "options": []},
        "portMappings": [{"hostPort": 18083, "containerPort": 80, "protocol": "udp", "hostIP": ""}],
        "cgroupPath": parent,
    }


ADD_IPV6 = """#!{python}
import json, os, subprocess, sys

result = json.load(sys.stdin)["prevResult"]
if os.environ["CNI_COMMAND"] == "ADD":
    words = ["ip", "-6", "address", "add", "fd00:93::5/64", "dev", os.environ["CNI_IFNAME"], "nodad"]
    ended = subprocess.run(["nsenter", "--net=" + os.environ["CNI_NETNS"], *words], capture_output=True, text=True)
    if ended.returncode:
        print(json.dumps({{"cniVersion": "1.0.0", "code": 100, "msg": ended.stderr}}))
        sys.exit(1)
    result["ips"].append({{"address": "fd00:93::5/64", "interface": 2}})
    print(json.dumps(result))
"""


def test_ipv6_is_enabled_when_a_plugin_runs(kubelet: Kubelet, served: Served) -> None:
    """For plugins that add an address by ip(8); those of the CNI project enable IPv6 on their interface themselves."""
    binary = served.dirs.cni_more_bin / "add-ipv6"
    binary.write_text(ADD_IPV6.format(python=sys.executable))
    binary.chmod(0o755)
    network = bridge(served.dirs.cni_leases, link="six0", subnets=("10.93.0.0/24",))
    with in_force(served, network, {"type": "add-ipv6"}, name="six"):
        pod = kubelet.pod()
        addresses = kubelet.cri.sandbox_status(pod.id).network
        kubelet.cri.remove(pod.id)
    binary.unlink()

    assert [extra.ip for extra in addresses.additional_ips] == ["fd00:93::5"]


def test_plugins_from_the_directory_of_a_network_are_run(kubelet: Kubelet, served: Served) -> None:
    directory = served.dirs.cni_conf / "more"
    directory.mkdir()
    settings = {"type": "tuning", "sysctl": {"net.core.somaxconn": "77"}}
    (directory / "10-tuning.conf").write_text(json.dumps(settings))
    try:
        with in_force(served, bridge(served.dirs.cni_leases, link="more0"), name="more"):
            pod = kubelet.pod()
            seen = kubelet.inside(kubelet.started(pod), "cat /proc/sys/net/core/somaxconn")
            kubelet.cri.remove(pod.id)
    finally:
        shutil.rmtree(directory)
    assert seen == "77\n"


def test_plugins_get_the_nodes_pod_ranges(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    network = pb.NetworkConfig(pod_cidr="10.244.3.0/24,fd00:244:3::/64")
    config = pb.RuntimeConfig(network_config=network)
    try:
        kubelet.cri.runtime.UpdateRuntimeConfig(pb.UpdateRuntimeConfigRequest(runtime_config=config))
        with recording_plugin(served, tmp_path, "ipRanges") as reported:
            pod = kubelet.pod()
            addresses = kubelet.cri.sandbox_status(pod.id).network
            _, configuration = reported()
            kubelet.cri.remove(pod.id)
    finally:
        (served.dirs.state / "pod-cidr").unlink()

    assert configuration["runtimeConfig"]["ipRanges"] == [
        [{"subnet": "10.244.3.0/24"}],
        [{"subnet": "fd00:244:3::/64"}],
    ]
    assert addresses.ip.startswith("10.244.3.")
    assert [extra.ip[:9] for extra in addresses.additional_ips] == ["fd00:244:"]


# --- the configuration of the ADD -------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["replaced", "removed", "broken"])
def test_del_runs_with_the_configuration_of_the_add(kubelet: Kubelet, served: Served, change: str) -> None:
    with in_force(served, bridge(served.dirs.cni_leases), PORTMAP, name="short-lived") as path:
        pod = kubelet.pod(port_mappings=[pb.PortMapping(container_port=80, host_port=18084)])
        assert pod.id in reservations(served, "short-lived").values()
        other = conflist(bridge(served.dirs.cni_leases / "elsewhere"), name="short-lived")
        if change == "removed":
            path.unlink()
        else:
            path.write_text(other if change == "replaced" else "{")
        kubelet.cri.stop(pod.id)

    assert reservations(served, "short-lived") == {}
    assert not names_port(nat_rules(), 18084)


def test_the_result_is_in_the_cache_that_other_tools_read(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod()
    path = served.dirs.cni_cache / f"results/pods-{pod.id}-eth0"

    cached = json.loads(path.read_text())
    kubelet.cri.stop(pod.id)

    assert cached["kind"] == "cniCacheV1"
    assert cached["containerId"] == pod.id
    assert cached["result"]["ips"][0]["address"].startswith("10.89.")
    assert not path.exists()


def test_a_pod_whose_checkpoint_is_lost_releases_its_address(served: Served, images: Images) -> None:
    kubelet = Kubelet(served.cri, images.busybox)
    before = served.snapshot()
    pod = kubelet.pod()
    for path in (served.dirs.state / "sandboxes").glob(f"{pod.id}*"):
        path.write_text("not a checkpoint any more")
    served.server.stop()
    served.restart()

    assert served.cri.sandbox_status(pod.id).network.ip.startswith("10.89.")
    assert f"{pod.id}.json" in served.cri.runtime.Status(pb.StatusRequest(verbose=True)).info["config"]
    kubelet.remove_all()

    corrupt = {entry for entry in served.snapshot().state if "corrupt" in entry}
    after = served.snapshot()
    assert corrupt
    assert (after.leases, after.namespaces, after.containers) == (before.leases, before.namespaces, before.containers)
    for path in (served.dirs.state / "sandboxes/corrupt").glob("*"):
        path.unlink()
    (served.dirs.state / "sandboxes/corrupt").rmdir()
