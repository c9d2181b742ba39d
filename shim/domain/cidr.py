"""The pod address ranges of a node, as the setting and the kubelet write them."""

import ipaddress

from shim.domain.errors import InvalidArgument


def parse_pod_cidr(text: str) -> tuple[str, ...]:
    """Split comma-separated ranges, each in canonical form: `10.244.1.7/24` is `10.244.1.0/24`, as for the kubelet.

    InvalidArgument names the part that is not a range.
    """
    return tuple(_canonical(part.strip()) for part in text.split(",") if part.strip())


def _canonical(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise InvalidArgument(f"pod_cidr {text!r} is not an address range: {error}") from error
