"""A CNI configuration from a template and the node's pod address ranges. Pure.

The placeholders are those of containerd's `conf_template`, without its template language. Each is replaced by JSON.
"""

import ipaddress
import re
from collections.abc import Sequence

import msgspec

from shim.cni.arguments import ip_ranges
from shim.cni.conf import ConfError, parse_network
from shim.domain.errors import InvalidArgument

FILE = "zz-pydockershim.conflist"
"""The name sorts after the files of network add-ons, so that an add-on's configuration wins."""

_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}


def render(template: str, *, ranges: Sequence[str], source: str) -> bytes:
    """Return the configuration for at least one address range, such as `10.244.1.0/24`.

    Raise InvalidArgument, which names `source`, if a placeholder is unknown or the configuration is invalid.
    """
    values = _values(ranges)

    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        if name not in values:
            known = ", ".join(f"{{{{{known}}}}}" for known in values)
            raise InvalidArgument(
                f"cni_conf_template {source}: unknown placeholder {match[0][:80]!r}; known are {known}"
            )
        return values[name]

    content = _PLACEHOLDER.sub(value, template).encode()
    try:
        parse_network(content, file=FILE)
    except ConfError as error:
        raise InvalidArgument(f"cni_conf_template {source}: {error}") from error
    return content


def _values(ranges: Sequence[str]) -> dict[str, str]:
    families = list(dict.fromkeys(ipaddress.ip_network(text).version for text in ranges))
    return {
        # The template has the quotes around it, as with containerd.
        ".PodCIDR": ranges[0],
        ".PodCIDRRanges": msgspec.json.encode(ip_ranges(ranges)).decode(),
        ".Routes": msgspec.json.encode([{"dst": _EVERYWHERE[family]} for family in families]).decode(),
    }
