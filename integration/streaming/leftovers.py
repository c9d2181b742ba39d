"""Resources that a disconnected client could leak in the server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from integration.conftest import Served
from integration.node.processes import size


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Counts of the server's threads and descriptors; they may fall, because pools shrink."""

    threads: int
    descriptors: int

    @classmethod
    def of(cls, served: Served) -> Self:
        """Count the server's threads and descriptors now."""
        now = size(served.server.daemon.pid)
        return cls(now.threads, now.descriptors)

    def most(self, other: Self) -> Self:
        """Return the higher of each count."""
        return type(self)(max(self.threads, other.threads), max(self.descriptors, other.descriptors))

    def __le__(self, other: Self) -> bool:
        return self.threads <= other.threads and self.descriptors <= other.descriptors


def processes(marker: str) -> list[int]:
    """Return the pids of processes whose command line has the marker, without the clients'."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue  # the process has exited
        if marker.encode() in line and b"kubectl" not in line:
            found.append(int(path.parent.name))
    return found
