"""CNI configurations for the tests, and the traces of plugins on the node."""

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SUBNETS = ("10.89.0.0/16",)
BRIDGE = "pods0"


def bridge(
    leases: Path, *, subnets: Sequence[str] = SUBNETS, kind: str = "bridge", link: str = BRIDGE, **more: Any
) -> dict[str, Any]:
    """Return the plugin `bridge`, named `kind`, on the bridge `link`, with host-local and a range for each subnet."""
    return {
        "type": kind,
        "bridge": link,
        "isGateway": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "dataDir": str(leases),
            "ranges": [[{"subnet": subnet}] for subnet in subnets],
            "routes": [{"dst": "::/0" if ":" in subnet else "0.0.0.0/0"} for subnet in subnets],
        },
        **more,
    }


def conflist(*plugins: dict[str, Any], name: str = "pods") -> str:
    """Return a configuration list as text."""
    return json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": list(plugins)})


def reserved(directory: Path) -> dict[str, str]:
    """Return host-local's reservations for a network: address to container id.

    Works while plugins add and release reservations: a file that has gone, or is still empty, is skipped.
    """
    found = {}
    for path in directory.glob("*"):
        if path.name[:1].isdigit() or ":" in path.name:
            with suppress(FileNotFoundError):
                found[path.name] = path.read_text().partition("\n")[0].strip()
    return {address: container for address, container in found.items() if container}


def nat_rules(command: str = "iptables") -> str:
    """Return all NAT rules of the node; pass `ip6tables` for IPv6."""
    return subprocess.run([command, "-t", "nat", "-S"], check=True, capture_output=True, text=True).stdout


def names_port(rules: str, port: int) -> bool:
    """Whether rules mention a port as a whole word; names of chains contain hexadecimal digits."""
    return re.search(rf"\b{port}\b", rules) is not None
