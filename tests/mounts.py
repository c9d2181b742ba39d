"""Real file systems and mounts for tests as root, which are always removed."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.node.mounts import unmount_all


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A file system of 64 KiB."""

    path: Path

    def fill(self) -> None:
        """Fill the file system with a file named `filler`."""
        descriptor = os.open(self.path / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            while os.write(descriptor, bytes(4096)):
                pass
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def make_read_only(self) -> None:
        """Remount read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@contextmanager
def small_tmpfs(path: Path) -> Iterator[Tmpfs]:
    """Mount a tiny tmpfs on the new directory `path`."""
    need_root()
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)], check=True)
    try:
        yield Tmpfs(path)
    finally:
        unmount_below(path)


def need_root() -> None:
    """Skip the test for other users."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


def mounts_on(path: Path, *, pid: int | str = "self") -> list[str]:
    """Return the lines of mountinfo(5) with mount point `path`."""
    table = os.fsdecode(Path(f"/proc/{pid}/mountinfo").read_bytes()).split("\n")
    return [line for line in table if line.split(" ")[4:5] == [str(path)]]


def unmount_below(path: Path) -> None:
    """Unmount all mounts on `path` and below it, also those in use."""
    unmount_all(path, abandon=True)
