"""Reads the network counters of a pod from /proc, without entering its network namespace."""

from dataclasses import dataclass
from pathlib import Path

from shim.base.proc import lines
from shim.cgroup.files import read_list

_LOOPBACK = "lo"
_COLUMNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Counters of an interface since its creation; rx is received, tx transmitted."""

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


def interfaces_from_net_dev(table: bytes) -> list[Interface]:
    """Parse /proc/<pid>/net/dev (proc(5)). Skip `lo`, because a pod's packets to itself are not traffic."""
    found = []
    for line in lines(table):
        # A large first number may follow the name's colon without a blank.
        name, colon, rest = line.partition(b":")
        words = rest.split()
        if not colon or len(words) < _COLUMNS or not all(word.isdigit() for word in words):
            continue
        interface = _interface(name.strip().decode(errors="replace"), [int(word) for word in words])
        if interface.name != _LOOPBACK:
            found.append(interface)
    return found


def interfaces_of(pid: int, *, proc: Path = Path("/proc")) -> list[Interface] | None:
    """Read the counters of a process's network namespace; None if the process has exited."""
    table = read_list(f"{proc}/{pid}/net/dev")
    return None if table is None else interfaces_from_net_dev(table)


def _interface(name: str, counts: list[int]) -> Interface:
    return Interface(
        name=name,
        rx_bytes=counts[0],
        rx_packets=counts[1],
        rx_errors=counts[2],
        rx_dropped=counts[3],
        tx_bytes=counts[8],
        tx_packets=counts[9],
        tx_errors=counts[10],
        tx_dropped=counts[11],
    )
