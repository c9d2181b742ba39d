"""Pod addresses of the network in use, and whether another interface of the node has a route to them."""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from shim.cni.conf import NetworkConfig, choose, read_directory
from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.domain.errors import reason_of
from shim.netns.routes import Route, routes

_SUBJECT = "pod addresses"
_ON_NODES_NETWORK = ("macvlan", "ipvlan", "vlan", "host-device", "sriov")
"""Plugins of the CNI project that put pods on the network of the node, with addresses of that network."""


def check_pod_ranges(config: Config) -> Iterator[Finding]:
    """Yield whether other interfaces of the node have routes to the pod ranges; nothing if no range is known."""
    if config.network_plugin == "none":
        return
    network = choose(read_directory(config.cni_conf_dir), bin_dirs=config.cni_bin_dir).network
    ranges = () if network is None else pod_ranges(network, config)
    if network is None or not ranges or is_on_nodes_network(network):
        return
    try:
        overlaps = _overlaps(ranges, routes(), own=bridge(network))
    except OSError as error:
        yield Finding("warn", _SUBJECT, f"the node's routes cannot be read: {reason_of(error)}")
        return
    for text, route in overlaps:
        what = f"{text} of network {network.name} overlaps {route.destination}, which is reached by {route.interface}"
        advice = f"give pods other addresses in {config.cni_conf_dir / network.file}, or take the other network away"
        yield Finding("warn", _SUBJECT, f"{what}: pods, or what is there, cannot be reached", advice)
    if not overlaps:
        yield Finding("ok", _SUBJECT, f"{', '.join(ranges)} of network {network.name}")


def _overlaps(ranges: Sequence[str], found: Sequence[Route], *, own: str) -> list[tuple[str, Route]]:
    networks = [(text, ipaddress.ip_network(text, strict=False)) for text in ranges]
    return [
        (text, route)
        for text, network in networks
        for route in found
        if route.interface != own
        and route.destination.version == network.version
        and route.destination.overlaps(network)
    ]


def is_on_nodes_network(network: NetworkConfig) -> bool:
    """Return whether pods are on the network of the node, so that the node does not forward their packets."""
    return any(kind in _ON_NODES_NETWORK for kind in network.plugin_types)


def bridge(network: NetworkConfig) -> str:
    """Return the name of the bridge of a network; empty if it has none."""
    bridges = (plugin for plugin in network.conflist["plugins"] if plugin["type"] == "bridge")
    return next((str(plugin.get("bridge") or "cni0") for plugin in bridges), "")


def pod_ranges(network: NetworkConfig, config: Config) -> tuple[str, ...]:
    """Return the address ranges of the plugins of a network and of the kubelet, as written."""
    found: list[str] = []
    for plugin in network.conflist["plugins"]:
        ipam = plugin.get("ipam")
        if isinstance(ipam, dict):
            found += _subnets(ipam)
    if network.declares("ipRanges"):
        found += [text.strip() for text in config.pod_cidr.split(",") if text.strip()]
    return tuple(dict.fromkeys(text for text in found if _is_network(text)))


def _subnets(value: Any) -> list[str]:
    """Return every `subnet` of an `ipam`, which has them in itself or in lists of lists."""
    if isinstance(value, list):
        return [subnet for item in value for subnet in _subnets(item)]
    if not isinstance(value, dict):
        return []
    own = [value["subnet"]] if isinstance(value.get("subnet"), str) else []
    return own + _subnets(value.get("ranges"))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
