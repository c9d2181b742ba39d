"""What a client that has gone could leave behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from integration.conftest import Served
from integration.node.processes import size


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Threads and descriptors of the server; fewer are no leftover: pools shrink."""

    threads: int
    descriptors: int

    @classmethod
    def of(cls, served: Served) -> Self:
        """Count those there are now."""
        now = size(served.server.daemon.pid)
        return cls(now.threads, now.descriptors)

    def most(self, other: Self) -> Self:
        """Return the higher of each count."""
        return type(self)(max(self.threads, other.threads), max(self.descriptors, other.descriptors))

    def __le__(self, other: Self) -> bool:
        return self.threads <= other.threads and self.descriptors <= other.descriptors


def processes(marker: str) -> list[int]:
    """Pids of processes whose command line has the marker, the clients' aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue  # it has ended
        if marker.encode() in line and b"kubectl" not in line:
            found.append(int(path.parent.name))
    return found
