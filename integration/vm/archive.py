"""Archives for the kernel's initramfs: cpio, in the format `newc` of the kernel's documentation."""

import itertools
import stat
from typing import IO


class Archive:
    """Writes an archive into a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._numbers = itertools.count(1)

    def add_directory(self, name: str) -> None:
        """Add a directory, after its parents."""
        self._add(name, mode=stat.S_IFDIR | 0o755)

    def add_file(self, name: str, content: bytes) -> None:
        """Add an executable file."""
        self._add(name, mode=stat.S_IFREG | 0o755, content=content)

    def add_link(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(name, mode=stat.S_IFLNK | 0o777, content=target.encode())

    def add_device(self, name: str, *, major: int, minor: int) -> None:
        """Add a character device."""
        self._add(name, mode=stat.S_IFCHR | 0o600, device=(major, minor))

    def end(self) -> None:
        """Write the trailer."""
        self._add("TRAILER!!!", mode=0)

    def _add(self, name: str, *, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        label = name.encode() + b"\0"
        # Inode, mode, owner, group, links, time, size, device (2), device of the node (2), length of the name,
        # checksum.
        fields = (next(self._numbers), mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(label), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + label
        self._file.write(_padded(head) + _padded(content))


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
