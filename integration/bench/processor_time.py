"""Processor time of processes and of the machine, in seconds, from `/proc` (proc(5))."""

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def parent_of(pid: int) -> int:
    """Return the parent of a process. Raise FileNotFoundError or ProcessLookupError if the process has ended."""
    return int(_fields(pid)[1])


def children_of(pid: int) -> Iterator[int]:
    """Yield the living children of a process."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(int(each.name)) == pid:
                yield int(each.name)
        except (FileNotFoundError, ProcessLookupError):
            continue


def own_seconds(pid: int) -> float:
    """Return the processor time of a process. Raise FileNotFoundError or ProcessLookupError if it has ended."""
    return sum(map(int, _fields(pid)[11:13])) / _TICKS


def all_seconds(pid: int) -> float:
    """Return the processor time of a process and of the children that it has reaped. Raise as `own_seconds` does."""
    return sum(map(int, _fields(pid)[11:15])) / _TICKS


def machine_seconds() -> float:
    """Return the time that the processors have been busy since the start of the machine."""
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft) / _TICKS


def _fields(pid: int) -> list[str]:
    """Return the fields of `stat` from the third on; the second is the name, which may contain blanks."""
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
