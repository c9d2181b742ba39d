"""A small file system in memory that can be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.node.commands import run
from integration.node.mounts import unmount_all

_DISK = "1m"
_MOUNT_SECONDS = 60


class Disk:
    """A state directory on a file system in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Mount the file system while the block runs."""
        run(["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=700", "tmpfs", self._path], timeout=_MOUNT_SECONDS)
        try:
            yield
        finally:
            unmount_all(self._path)

    def fill(self) -> None:
        """Fill the file system."""
        filler = self._path / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)

    def make_room(self) -> None:
        """Undo `fill`."""
        (self._path / "filler").unlink(missing_ok=True)
