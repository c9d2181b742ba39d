"""Keeps pods from the loopback addresses of the node.

The plugin `portmap` sets `route_localnet` on the interface by which the node reaches a pod, so that host ports are open
on 127.0.0.1 as well. From then on the kernel takes packets for 127.0.0.0/8 that come in there, and any container may
send these (CAP_NET_RAW): services of the node that listen on loopback alone would answer it. A kubelet has a rule
against that for connections to the node itself. IPv6 has no such setting: what comes in for ::1 is dropped.

No packet that comes in from elsewhere has such a destination by right. Those of the node itself come in by `lo`, and
answers to what it has sent to a host port from 127.0.0.1 have another one until the kernel changes it back. So they are
dropped before any chain redirects them: a host port of 127.0.0.1 is not open to pods either.

The rule is in a table of nftables of its own, which no `iptables-restore` and no `iptables -F` touches; on a kernel
without nftables, in the chain PREROUTING of the table `raw` of iptables.
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
"""Of nftables, for IPv4."""

_SOURCE, _DESTINATION = 12, 16
"""Offsets in the header of IPv4."""
_LOOPBACK = 127
_CHAIN = Chain(
    name="loopback",
    hook=NF_INET_PRE_ROUTING,
    priority=NF_IP_PRI_RAW,
    rule=(
        *ip_byte(_DESTINATION, _LOOPBACK, equal=True),
        # Loopback addresses of a VRF come in by its interface. From elsewhere the kernel takes no such source.
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
    """Have the rule as this version has it. FailedPrecondition when neither nftables nor iptables takes it."""
    try:
        replace_table(TABLE, _CHAIN)
    except OSError as error:
        _change_iptables("--insert", instead_of=error)


def has_guard() -> bool:
    """Return whether the rule is there. FailedPrecondition when neither nftables nor iptables can be asked."""
    try:
        return count_rules(TABLE) > 0
    except OSError as error:
        return _is_in_iptables(instead_of=error)


def remove_guard() -> None:
    """Remove the rule; gone is fine. FailedPrecondition when neither nftables nor iptables does it."""
    try:
        remove_table(TABLE)
    except FileNotFoundError:
        return
    except OSError as error:
        _change_iptables("--delete", instead_of=error)


def _change_iptables(verb: str, *, instead_of: OSError) -> None:
    """Insert or delete the rule, unless that was done before."""
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


def _failure(nftables: OSError, iptables_says: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"keep pods from loopback addresses of the node: nftables: {reason_of(nftables)}; iptables: {iptables_says}"
    )
