"""The arguments about a pod for CNI plugins: CNI_ARGS and capability arguments. Pure.

Sources: the CNI conventions (dynamic plugin fields), and the Kubernetes annotations for bandwidth.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument

INTERFACE = "eth0"
"""The pod's interface in the pod network (CNI_IFNAME), named as by every other runtime."""

INGRESS_BANDWIDTH = "kubernetes.io/ingress-bandwidth"
EGRESS_BANDWIDTH = "kubernetes.io/egress-bandwidth"
POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"

BURST_BITS = 2**31 - 1
"""Burst of a shaped pod in bits, the plugin's unit. Kubernetes has no annotation for it; all runtimes use this."""

MIN_BANDWIDTH, MAX_BANDWIDTH = Decimal(10**3), Decimal(10**15)
"""Bits per second that Kubernetes accepts: 1k to 1P."""

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)\Z"
)
_FACTORS = (
    {suffix: Decimal(10) ** power for suffix, power in (("n", -9), ("u", -6), ("m", -3), ("", 0))}
    | {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)}
    | {suffix + "i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)}
)


def cni_args(metadata: pb.PodSandboxMetadata, *, sandbox_id: str) -> list[tuple[str, str]]:
    """Return CNI_ARGS, which identify the pod. IgnoreUnknown comes first: it makes plugins accept unknown keys."""
    return [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", metadata.namespace),
        ("K8S_POD_NAME", metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
        ("K8S_POD_UID", metadata.uid),
    ]


def capability_args(config: pb.PodSandboxConfig, *, pod_ranges: Sequence[str]) -> dict[str, Any]:
    """Return the capability arguments of a pod, without empty arguments.

    `pod_ranges` are the node's pod address ranges, such as `10.244.1.0/24`. Raise InvalidArgument for a malformed
    annotation.
    """
    arguments: dict[str, Any] = {
        "portMappings": port_mappings(config.port_mappings),
        "bandwidth": bandwidth(config.annotations),
        "dns": dns(config.dns_config),
        "ipRanges": ip_ranges(pod_ranges),
        "cgroupPath": config.linux.cgroup_parent,
        POD_ANNOTATIONS: dict(config.annotations),
    }
    return {key: value for key, value in arguments.items() if value}


def port_mappings(mappings: Iterable[pb.PortMapping]) -> list[dict[str, Any]]:
    """Return the host ports of a pod, without mappings that have no host port: they only document a container port.

    The API server accepts mappings that differ only in the spelling of the same host address. Return the first of them;
    for the unspecified address the mapping without an address, if there is one, because it is for both families.
    """
    given: dict[tuple[object, ...], pb.PortMapping] = {}
    for mapping in mappings:
        if not mapping.host_port:
            continue
        key = (mapping.protocol, mapping.host_port, host_address(mapping.host_ip))
        if key not in given or not mapping.host_ip:
            given[key] = mapping
    return [_port_mapping(mapping) for mapping in given.values()]


def host_address(host_ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse the host address of a port mapping; empty text means all addresses. Raise ValueError."""
    return ipaddress.ip_address(host_ip or "0.0.0.0")


def _port_mapping(mapping: pb.PortMapping) -> dict[str, Any]:
    return {
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": pb.Protocol.Name(mapping.protocol).lower(),
        "hostIP": mapping.host_ip,
    }


def bandwidth(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the pod's traffic limits in bits per second; an empty object without the annotations."""
    limits: dict[str, int] = {}
    for key, direction in ((INGRESS_BANDWIDTH, "ingress"), (EGRESS_BANDWIDTH, "egress")):
        if key in annotations:
            limits[f"{direction}Rate"] = _bits_per_second(annotations[key], key=key)
            limits[f"{direction}Burst"] = BURST_BITS
    return limits


def _bits_per_second(text: str, *, key: str) -> int:
    """Parse a Kubernetes Quantity. Like Kubernetes, round a fraction of a bit up."""
    match = _QUANTITY.match(text)
    if match is None:
        raise InvalidArgument(f"annotation {key}: {text[:60]!r} is not a quantity")
    factor = Decimal(f"1e{match['exponent']}") if match["exponent"] else _FACTORS[match["suffix"] or ""]
    value = Decimal(match["number"]) * factor
    if not MIN_BANDWIDTH <= value <= MAX_BANDWIDTH:
        raise InvalidArgument(f"annotation {key}: {text!r} is not between 1k and 1P bits per second")
    return int(value.to_integral_value(ROUND_CEILING))


def dns(config: pb.DNSConfig) -> dict[str, list[str]]:
    """Return the resolver settings of the pod; an empty object if it has none."""
    lists = {
        "servers": list(config.servers),
        "searches": list(config.searches),
        "options": list(config.options),
    }
    return lists if any(lists.values()) else {}


def ip_ranges(pod_ranges: Iterable[str]) -> list[list[dict[str, str]]]:
    """Return a range set for each address family: a plugin assigns an address from each set."""
    sets: dict[int, list[dict[str, str]]] = {}
    for text in pod_ranges:
        sets.setdefault(ipaddress.ip_network(text).version, []).append({"subnet": text})
    return list(sets.values())
