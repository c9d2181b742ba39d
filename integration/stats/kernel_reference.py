"""The kernel's figures of a container, read by the test."""

import bisect
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.conftest import Served
from integration.node.commands import run
from integration.node.mounts import unmount_all
from integration.pods.kubelet import pid_of

UNIFIED = ""
"""The v2 tree on a hybrid machine."""

_ROOT = Path("/sys/fs/cgroup")
_POLL_SECONDS = 0.01
_PROMPT = 2_000_000
"""Nanoseconds; a slower read is discarded, because its moment is uncertain."""
_COMMAND_SECONDS = 60


def group_of(served: Served, container_id: str, controller: str) -> Path:
    """Return the control group of a container: in the tree of this v1 controller, or in the v2 tree."""
    paths = {}
    for line in Path(f"/proc/{pid_of(served, container_id)}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    if controller and controller in paths:
        return _ROOT / controller / paths[controller].lstrip("/")
    hybrid = _ROOT / "unified"
    return (hybrid if hybrid.is_dir() else _ROOT) / paths[UNIFIED].lstrip("/")


def cpu_time(group: Path) -> int:
    """Return the CPU time of a group in nanoseconds."""
    counter = group / "cpuacct.usage"
    if counter.exists():
        return int(counter.read_text())
    return int((group / "cpu.stat").read_text().split()[1]) * 1000


class CpuHistory:
    """CPU time of a group, recorded a hundred times a second inside a `with` block."""

    def __init__(self, group: Path, *, idle: tuple[int, int]) -> None:
        """Watch a group that used no CPU between the moments of `idle` (ns since the epoch), and runs evenly since."""
        self._group = group
        self._moments: list[int] = [*idle]
        self._used: list[int] = [0, 0]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "CpuHistory":
        while not self._note():
            pass
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        while not self._note():
            pass

    def between(self, begin: int, end: int) -> float:
        """Return the nanoseconds of CPU time between two moments (ns since the epoch)."""
        return self.at(end) - self.at(begin)

    def rate(self, begin: int, end: int) -> float:
        """Return the nanoseconds of CPU time per second between two moments."""
        return self.between(begin, end) / (end - begin) * 1e9

    def rates(self, end: int, *, windows: Iterable[int]) -> list[float]:
        """Return the rates of windows of these lengths (ns) before `end`, as far as the group is that old."""
        return [self.rate(end - window, end) for window in windows if end - window >= self._moments[0]]

    def at(self, moment: int) -> float:
        """Return the total CPU time at a moment (ns since the epoch)."""
        after = bisect.bisect(self._moments, moment)
        assert 0 < after < len(self._moments), "this moment was not watched"
        (begin, end), (used, more) = self._moments[after - 1 : after + 1], self._used[after - 1 : after + 1]
        return used + (more - used) * (moment - begin) / (end - begin)

    def _watch(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            self._note()

    def _note(self) -> bool:
        """Read once, and record the value if its moment is certain; return whether it is."""
        began = time.time_ns()
        used = cpu_time(self._group)
        took = time.time_ns() - began
        if took > _PROMPT:
            return False
        self._moments.append(began + took // 2)
        self._used.append(used)
        return True


def anonymous_of(group: Path) -> int:
    """Return the bytes of anonymous memory in a group and below. The kernel's sums lag up to two seconds."""
    rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(rows.get("total_rss") or rows["anon"])


def anonymous_memory(pids: Sequence[int]) -> int:
    """Return the bytes of anonymous memory of processes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def cached(path: Path) -> int:
    """Return the bytes of a file in the page cache."""
    return int(run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], timeout=_COMMAND_SECONDS))


@dataclass(frozen=True, slots=True)
class Disk:
    """A mounted file system on a separate block device."""

    directory: Path
    major: int
    minor: int

    @property
    def device(self) -> str:
        """The name of the block device."""
        return f"/dev/{Path(f'/sys/dev/block/{self.major}:{self.minor}').readlink().name}"

    def count_for(self, group: Path) -> None:
        """Make the kernel count the group's reads and writes.

        Since Linux 6.10 cgroup v1 counts only for devices with a limit; this limit is never reached.
        """
        limit = group / "blkio.throttle.write_bps_device"
        if limit.exists():
            limit.write_text(f"{self.major}:{self.minor} {1 << 40}")


@contextmanager
def mounted_disk(place: Path, *, size: int) -> Iterator[Disk]:
    """Mount a new disk of `size` bytes below `place`, which is on a real disk."""
    image, directory = place / "disk.img", place / "disk"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    run(["mkfs.ext4", "-q", image], timeout=_COMMAND_SECONDS)
    run(["mount", "-o", "loop", image, directory], timeout=_COMMAND_SECONDS)
    try:
        device = directory.stat().st_dev
        yield Disk(directory, os.major(device), os.minor(device))
    finally:
        unmount_all(directory)
