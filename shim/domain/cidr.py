"""Parses the pod address ranges of a node, as written by the setting and the kubelet."""

import ipaddress

from shim.domain.errors import InvalidArgument


def parse_pod_cidr(text: str) -> tuple[str, ...]:
    """Split comma-separated ranges into their canonical form: `10.244.1.7/24` becomes `10.244.1.0/24`, as in kubelets.

    Raise InvalidArgument with the part that is not a range.
    """
    return tuple(_canonical(part.strip()) for part in text.split(",") if part.strip())


def _canonical(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise InvalidArgument(f"pod_cidr {text!r} is not an address range: {error}") from error
