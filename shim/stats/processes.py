"""Counts a container's processes, threads, descriptors and sockets from /proc.

Processes that exit meanwhile are not counted.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from shim.base.proc import lines, value_of
from shim.cgroup.files import names, read

MAX_PROCESSES = 2_000
"""Maximum processes read per container. Each further process counts as one thread without descriptors.

Reading tens of thousands would keep the interpreter busy for seconds, and delay all requests for stats.
"""

MAX_DESCRIPTORS = 20_000
"""Maximum descriptors checked per container. Further descriptors do not count as sockets."""

_ULIMITS = {b"Max open files": "max_open_files"}
"""The limits that cAdvisor reports, by their names in /proc/<pid>/limits."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Totals of a container's processes."""

    count: int
    threads: int
    descriptors: int
    sockets: int


def processes(pids: Iterable[int], *, proc: str = "/proc") -> Processes:
    """Count processes, threads, open descriptors, and sockets."""
    known = list(pids)
    count = threads = max(0, len(known) - MAX_PROCESSES)
    descriptors = sockets = 0
    for pid in known[:MAX_PROCESSES]:
        status = read(f"{proc}/{pid}/status")
        if status is None:
            continue
        held = names(f"{proc}/{pid}/fd")
        checked = held[: max(0, MAX_DESCRIPTORS - descriptors)]
        count += 1
        threads += _threads(status)
        descriptors += len(held)
        sockets += sum(_is_socket(f"{proc}/{pid}/fd/{name}") for name in checked)
    return Processes(count, threads, descriptors, sockets)


def soft_limits(pid: int, *, proc: str = "/proc") -> dict[str, int]:
    """Return a process's soft limits, by name in the metrics. Unlimited values are omitted."""
    found = {}
    for line in lines(read(f"{proc}/{pid}/limits") or b""):
        for title, name in _ULIMITS.items():
            words = line.removeprefix(title).split()
            if line.startswith(title) and words and words[0].isdigit():
                found[name] = int(words[0])
    return found


def _threads(status: bytes) -> int:
    threads = value_of(status, b"Threads")
    return int(threads) if threads.isdigit() else 1


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")  # noqa: PTH115 - thousands of them
    except OSError:
        return False
