"""Accept connections from outside to host ports in the FORWARD chain.

Docker sets the policy of FORWARD to DROP when it switches on ip_forward. The plugin `firewall` then accepts what a pod
sends and the answers to it. What it does not accept is a new connection from outside that `portmap` has redirected to
a pod. The plugin provides a chain for rules of the administrator, which it jumps to first; a rule is appended there.
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
"""Chain of the plugin `firewall` for rules of the administrator, where its configuration names no other."""
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
"""Accepts what a rule of this node has redirected, such as a host port, and nothing else."""

_changing = threading.Lock()


def admin_chain(conflist: JsonObject) -> str:
    """Return the chain in which redirected connections have to be accepted; empty where none is.

    Only lists with the plugin `firewall` and its backend for iptables have one: without it, filters are left alone.
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

    The rule is one for all pods and stays, as the plugin's chains do. A failure is logged: the pod is there, and its
    host ports work at least where nothing drops them.
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
    """Append the rule where it is absent, and return what iptables says against that."""
    with _changing:
        code, problem = iptables(command, "--check", chain, *RULE)
        if code == ABSENT:
            code, problem = iptables(command, "--append", chain, *RULE)
    return problem if code else ""
