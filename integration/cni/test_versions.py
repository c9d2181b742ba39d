"""Configurations of every CNI specification version, with plugins of three releases."""

import os
from pathlib import Path

import msgspec
import pytest

from integration.cni.test_examples import CONFIG, served
from integration.conftest import NodeDirs
from integration.networks import bridge
from integration.node.isolation import Node
from integration.node.netns import Netns
from shim.cni.arguments import INTERFACE, capability_args, cni_args
from shim.cni.conf import SUPPORTED_VERSIONS, NetworkConfig, parse_network
from shim.cni.plugin import JsonObject, PluginError
from shim.cni.plugin_status import ask_status
from shim.cni.plugins import Attachment, Plugins
from shim.cni.result import pod_ips, result_from_json

NEWEST = {"older": "0.4.0", "stable": "1.0.0", "newer": "1.1.0"}
"""The newest specification version of each plugin release."""


@pytest.fixture
def bin_dir(node: Node, release: str) -> Path:
    """Return the plugin directory of a release."""
    found = {"older": node.older_plugins, "stable": node.tools, "newer": node.newer_plugins}[release]
    if found is None:
        missing = node.older_plugins_missing if release == "older" else node.newer_plugins_missing
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return found.root / "usr/lib/cni"


def network(dirs: NodeDirs, version: str) -> NetworkConfig:
    """Return a network: a plugin list, or a single plugin if the version has no lists."""
    number = SUPPORTED_VERSIONS.index(version)
    first = bridge(dirs.cni_leases, subnets=("10.88.0.0/24",), link="versions0", ipMasq=True)
    conflist: JsonObject = {"cniVersion": version, "name": "versions"}
    if number < SUPPORTED_VERSIONS.index("0.3.0"):
        return parse_network(msgspec.json.encode({**conflist, **first}), file="10.conf")
    plugins = [first, {"type": "portmap", "capabilities": {"portMappings": True}}]
    if number >= SUPPORTED_VERSIONS.index("0.4.0"):
        plugins.append({"type": "firewall"})
    return parse_network(msgspec.json.encode({**conflist, "plugins": plugins}), file="10.conflist")


def attached(config: NetworkConfig, pod: Netns) -> Attachment:
    return Attachment(
        conflist=config.conflist,
        container_id="c0ffee",
        netns=str(pod.path),
        ifname=INTERFACE,
        args=cni_args(CONFIG.metadata, sandbox_id="c0ffee"),
        capabilities=capability_args(CONFIG, pod_ranges=()),
    )


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
@pytest.mark.parametrize("release", NEWEST)
def test_add_and_del_work_with_every_version(
    host: Netns, pod: Netns, node_dirs: NodeDirs, bin_dir: Path, release: str, version: str
) -> None:
    plugins = Plugins(bin_dirs=[bin_dir], cache_dir=node_dirs.cni_cache, timeout=60)
    config = network(node_dirs, version)
    attachment = attached(config, pod)
    known = SUPPORTED_VERSIONS.index(version) <= SUPPORTED_VERSIONS.index(NEWEST[release])

    if not known:
        with pytest.raises(PluginError, match="incompatible CNI versions") as raised:
            host.call(lambda: plugins.add(attachment))
        assert raised.value.code == 1
        return

    result = host.call(lambda: plugins.add(attachment))
    address = pod_ips(result_from_json(result), ifname=INTERFACE)[0]
    assert served(pod, host, address, 80) == b"hello from the pod"
    for _ in range(2):
        host.call(lambda: plugins.delete(attachment))

    assert not [path for path in node_dirs.cni_leases.glob("*/*") if path.read_text().startswith("c0ffee")]
    assert "c0ffee" not in host.run("iptables-save")


@pytest.mark.parametrize("release", ["newer"])
def test_status_reports_whether_real_plugins_are_ready(host: Netns, node_dirs: NodeDirs, bin_dir: Path) -> None:
    config = network(node_dirs, "1.1.0")

    assert host.call(lambda: ask_status(config, bin_dirs=[bin_dir])) == ""
