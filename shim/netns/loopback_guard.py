"""A firewall rule that keeps pods away from the node's loopback addresses.

The CNI plugin `portmap` sets `route_localnet` on the node's interface towards a pod, so that host ports also work on
127.0.0.1. The kernel then accepts packets for 127.0.0.0/8 on that interface, and any container with CAP_NET_RAW can
send them, so services that listen on loopback alone would answer the container. The kubelet has a rule against such
connections to the node itself. IPv6 needs no rule: the kernel always drops incoming packets for ::1.

No incoming packet for 127.0.0.0/8 is legitimate. The node's own packets arrive on `lo`. Replies to packets that the
node sent from 127.0.0.1 to a host port have another destination until the kernel translates it back. The rule therefore
drops such packets before any chain redirects them. Pods cannot use host ports of 127.0.0.1 either.

The rule is in a separate table of nftables, which neither `iptables-restore` nor `iptables -F` touches. On a kernel
without nftables it is in the chain PREROUTING of the iptables table `raw`.
"""

from shim.base.iptables import ABSENT, iptables
from shim.domain.errors import FailedPrecondition, ShimError, reason_of
from shim.netns.nftables import (
    NF_INET_PRE_ROUTING,
    NF_IP_PRI_RAW,
    Chain,
    count_and_drop,
    count_rules,
    ip_byte,
    not_from_loopback,
    remove_table,
    replace_table,
)

TABLE = "pydockershim"
"""The nftables table, for IPv4."""

_SOURCE, _DESTINATION = 12, 16
"""Offsets in the IPv4 header."""
_LOOPBACK = 127
_CHAIN = Chain(
    name="loopback",
    hook=NF_INET_PRE_ROUTING,
    priority=NF_IP_PRI_RAW,
    rule=(
        *ip_byte(_DESTINATION, _LOOPBACK, equal=True),
        # A VRF's loopback addresses arrive on its interface. The kernel accepts such a source from nowhere else.
        *ip_byte(_SOURCE, _LOOPBACK, equal=False),
        *not_from_loopback(),
        *count_and_drop(),
    ),
)
_RULE = (
    *("PREROUTING", "--table", "raw"),
    *("!", "--in-interface", "lo", "!", "--source", "127.0.0.0/8", "--destination", "127.0.0.0/8"),
    *("--match", "comment", "--comment", "pydockershim: loopback of the node", "--jump", "DROP"),
)


def install_guard() -> None:
    """Install this version's rule in place of any older one. Raise FailedPrecondition if nftables and iptables fail."""
    try:
        replace_table(TABLE, _CHAIN)
    except OSError as error:
        _change_iptables("--insert", instead_of=error)


def has_guard() -> bool:
    """Return whether the rule is installed. Raise FailedPrecondition if nftables and iptables fail."""
    try:
        return count_rules(TABLE) > 0
    except OSError as error:
        return _is_in_iptables(instead_of=error)


def remove_guard() -> None:
    """Remove the rule, if it is installed. Raise FailedPrecondition if nftables and iptables fail."""
    try:
        remove_table(TABLE)
    except FileNotFoundError:
        return
    except OSError as error:
        _change_iptables("--delete", instead_of=error)


def _change_iptables(verb: str, *, instead_of: OSError) -> None:
    """Insert or delete the rule, unless it is present or absent already."""
    if _is_in_iptables(instead_of=instead_of) == (verb == "--insert"):
        return
    code, problem = _iptables(verb, instead_of)
    if code:
        raise _failure(instead_of, problem)


def _is_in_iptables(*, instead_of: OSError) -> bool:
    code, problem = _iptables("--check", instead_of)
    if code not in (0, ABSENT):
        raise _failure(instead_of, problem)
    return code == 0


def _iptables(verb: str, instead_of: OSError) -> tuple[int, str]:
    try:
        return iptables("iptables", verb, *_RULE)
    except OSError as error:
        raise _failure(instead_of, reason_of(error)) from error
    except ShimError as error:
        raise _failure(instead_of, str(error)) from error


def _failure(nftables: OSError, iptables_problem: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"keep pods from loopback addresses of the node: nftables: {reason_of(nftables)}; iptables: {iptables_problem}"
    )
