"""An iptables rule that accepts connections from outside to host ports.

Docker sets the policy of the chain FORWARD to DROP when it enables ip_forward. The plugin `firewall` then accepts
packets from pods and the replies to them, but not a new connection from outside that `portmap` has redirected to a pod.
The plugin first jumps to a chain for rules of the administrator. The server appends its rule to that chain.
"""

import threading
from collections.abc import Sequence

import structlog

from shim.base.iptables import ABSENT, iptables
from shim.cni.conf import declares
from shim.cni.plugin import JsonObject
from shim.domain.errors import ShimError, reason_of

log = structlog.get_logger(__name__)

ADMIN_CHAIN = "CNI-ADMIN"
"""Default chain of the plugin `firewall` for rules of the administrator."""
RULE = (
    "-m",
    "conntrack",
    "--ctstate",
    "DNAT",
    "-m",
    "comment",
    "--comment",
    "pydockershim: host ports",
    "-j",
    "ACCEPT",
)
"""Accepts only connections that a rule of this node has redirected, such as those to a host port."""

_changing = threading.Lock()


def admin_chain(conflist: JsonObject) -> str:
    """Return the chain that needs the rule; empty if no chain does.

    Only a list with the plugin `firewall` on iptables needs the rule. Without that plugin the server changes no
    filters.
    """
    plugins = conflist["plugins"]
    if not any(declares(plugin, "portMappings") for plugin in plugins):
        return ""
    for plugin in plugins:
        if plugin["type"] == "firewall" and plugin.get("backend", "") in ("", "iptables"):
            return str(plugin.get("iptablesAdminChainName") or ADMIN_CHAIN)
    return ""


def accept_host_ports(conflist: JsonObject, *, addresses: Sequence[str]) -> None:
    """Accept connections to host ports of a pod with these addresses, after its ADD.

    All pods share the rule, and it stays, like the plugin's chains. A failure is only logged: the pod runs, and its
    host ports work if no other rule drops the packets.
    """
    chain = admin_chain(conflist)
    if not chain:
        return
    for command in dict.fromkeys("ip6tables" if ":" in address else "iptables" for address in addresses):
        try:
            if problem := _ensure_rule(command, chain):
                log.warning("failed to accept host ports in FORWARD", chain=chain, command=command, error=problem)
        except OSError as error:
            log.warning("failed to accept host ports in FORWARD", chain=chain, command=command, error=reason_of(error))
        except ShimError as error:
            log.warning("failed to accept host ports in FORWARD", chain=chain, command=command, error=error)


def _ensure_rule(command: str, chain: str) -> str:
    """Append the rule if it is absent. Return the error of iptables; empty on success."""
    with _changing:
        code, problem = iptables(command, "--check", chain, *RULE)
        if code == ABSENT:
            code, problem = iptables(command, "--append", chain, *RULE)
    return problem if code else ""
