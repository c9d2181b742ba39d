"""IPv4 tables of nftables in the current network namespace, by netlink, so that no program has to be installed.

This does not use pyroute2, because of its cost (see `shim.netns.syscalls`). Sources: netlink(7), and the kernel headers
`linux/netfilter/nfnetlink.h` and `linux/netfilter/nf_tables.h`. The constants are named as there; attribute numbers
come from the enum of each message and expression.
"""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NF_INET_PRE_ROUTING = 0
"""The hook of all incoming packets."""
NF_IP_PRI_RAW = -300
"""No chain of an earlier priority changes a packet's addresses."""

_NETLINK_NETFILTER = 12
_NFPROTO_IPV4 = 2
_SUBSYSTEM = 10
"""NFNL_SUBSYS_NFTABLES."""
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _GETRULE = (_SUBSYSTEM << 8 | number for number in (0, 2, 3, 6, 7))
_REQUEST, _ACK, _DUMP, _CREATE, _APPEND = 0x1, 0x4, 0x300, 0x400, 0x800
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NESTED = 0x8000

_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, sender."""
_FAMILY = struct.Struct("!BBH")
"""struct nfgenmsg: family, version, resource."""
_ATTRIBUTE = struct.Struct("=HH")
"""struct nlattr: length, type."""
_SECONDS = 5.0
"""Limit for the kernel's answer, which comes at once."""
_ANSWER = 1 << 16

_NF_DROP = 0
_NFT_REG_VERDICT, _REGISTER = 0, 1
_NFT_PAYLOAD_NETWORK_HEADER = 1
_NFT_META_IIF = 4


@dataclass(frozen=True, slots=True)
class Chain:
    """A base chain with one rule, made of expressions in order."""

    name: str
    hook: int
    priority: int
    rule: Sequence[bytes]


def replace_table(name: str, chain: Chain) -> None:
    """Create the table `name` with `chain` alone, or replace it, in one transaction. Raise OSError from the kernel."""
    table = _text(1, name)
    own = _text(1, name) + _text(3, chain.name)
    hook = _nested(4, _number(1, chain.hook) + _number(2, chain.priority))
    expressions = b"".join(_nested(1, expression) for expression in chain.rule)
    messages = [
        (_NEWTABLE, _CREATE, table),  # a missing table could not be deleted
        (_DELTABLE, 0, table),
        (_NEWTABLE, _CREATE, table),
        (_NEWCHAIN, _CREATE, own + hook + _text(7, "filter")),
        (_NEWRULE, _CREATE | _APPEND, table + _text(2, chain.name) + _nested(4, expressions)),
    ]
    _change(messages)


def remove_table(name: str) -> None:
    """Remove a table. Raise OSError from the kernel, FileNotFoundError if the table is missing."""
    _change([(_DELTABLE, 0, _text(1, name))])


def count_rules(table: str) -> int:
    """Return the number of rules in a table; 0 if the table is missing. Raise OSError from the kernel."""
    wanted = _text(1, table)
    with _connected() as kernel:
        kernel.sendall(_message(_GETRULE, _REQUEST | _DUMP, _NFPROTO_IPV4, wanted))
        # A kernel may also send the rules of other tables. Each rule has its table as an attribute.
        return sum(payload.startswith(wanted, _FAMILY.size) for kind, payload in _answers(kernel) if kind == _NEWRULE)


# --- expressions ------------------------------------------------------------------------------------------


def ip_byte(offset: int, value: int, *, equal: bool) -> list[bytes]:
    """Match packets by a byte of the IPv4 header."""
    load = _number(1, _REGISTER) + _number(2, _NFT_PAYLOAD_NETWORK_HEADER) + _number(3, offset) + _number(4, 1)
    return [_expression("payload", load), _compare(bytes([value]), equal=equal)]


def not_from_loopback() -> list[bytes]:
    """Match packets that do not arrive on `lo`, which has index 1 in every namespace."""
    load = _number(1, _REGISTER) + _number(2, _NFT_META_IIF)
    return [_expression("meta", load), _compare(struct.pack("=I", 1), equal=False)]


def count_and_drop() -> list[bytes]:
    """Drop a packet, and count it for `nft list table`."""
    verdict = _nested(2, _nested(2, _number(1, _NF_DROP)))
    return [_expression("counter", b""), _expression("immediate", _number(1, _NFT_REG_VERDICT) + verdict)]


def _compare(value: bytes, *, equal: bool) -> bytes:
    return _expression("cmp", _number(1, _REGISTER) + _number(2, 0 if equal else 1) + _nested(3, _bytes(1, value)))


def _expression(name: str, data: bytes) -> bytes:
    return _text(1, name) + _nested(2, data)


# --- messages ---------------------------------------------------------------------------------------------


def _change(messages: Sequence[tuple[int, int, bytes]]) -> None:
    """Make changes in one transaction. Each change is a message type, flags and attributes."""
    *before, (kind, flags, attributes) = messages
    batch = [
        _message(_BATCH_BEGIN, _REQUEST, 0, resource=_SUBSYSTEM),
        *(_message(kind, _REQUEST | flags, _NFPROTO_IPV4, attributes) for kind, flags, attributes in before),
        _message(kind, _REQUEST | _ACK | flags, _NFPROTO_IPV4, attributes),
        _message(_BATCH_END, _REQUEST, 0, resource=_SUBSYSTEM),
    ]
    with _connected() as kernel:
        kernel.sendall(b"".join(batch))
        next(_answers(kernel), None)


def _connected() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    kernel.settimeout(_SECONDS)
    return kernel


def _message(kind: int, flags: int, family: int, attributes: bytes = b"", *, resource: int = 0) -> bytes:
    payload = _FAMILY.pack(family, 0, resource) + attributes
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, 0, 0) + payload


def _answers(kernel: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each message until the kernel reports success. Raise OSError if it reports failure."""
    while True:
        received = kernel.recv(_ANSWER)
        while received:
            length, kind, _, _, _ = _HEADER.unpack_from(received)
            payload, received = received[_HEADER.size : length], received[_aligned(length) :]
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                (code,) = struct.unpack_from("=i", payload)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return
            yield kind, payload


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _bytes(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value.ljust(_aligned(len(value)), b"\0")


def _text(kind: int, value: str) -> bytes:
    return _bytes(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _bytes(kind, struct.pack("!I", value & 0xFFFFFFFF))


def _nested(kind: int, attributes: bytes) -> bytes:
    return _bytes(kind | _NESTED, attributes)
