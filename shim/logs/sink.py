"""The CRI log of one container: created, appended to in whole lines, and created again when the kubelet rotated it."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from shim.logs.lines import BLOCK, end_of_lines

MODE = 0o640
"""Of a new file. Agents read it by their group."""
DIRECTORY_MODE = 0o755
COMPRESSED = ".gz"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NOFOLLOW: a link in the log directory must not make us append to, or truncate, a file elsewhere."""


class Sink:
    """One CRI log. Raises OSError; after an error the position in Docker's files must be found again (`resume`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """The open file."""
        return self._fd

    def open(self) -> None:
        """Open the file, create it if it is missing, and cut off a torn line at its end.

        A file that was open, and has been renamed, is closed. On an error it stays open.
        """
        fd = open_log(self.path)
        try:
            if self._fd >= 0 and os.path.sameopenfile(fd, self._fd):
                os.close(fd)
                return
            lock(fd, self.path)
            cut_torn_line(fd)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd = fd

    def write(self, lines: bytes) -> None:
        """Append whole lines in one write, so that a reader never sees half of one."""
        written = os.write(self._fd, lines)
        if written != len(lines):
            cut_torn_line(self._fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def replaced(self) -> bool:
        """Whether the open file was deleted and another has its name: lines written to it would be lost.

        A kubelet that got no answer to a reopen renames the old file back.
        """
        return os.fstat(self._fd).st_nlink == 0 and self.path.is_file()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_log(path: Path) -> int:
    """Open a CRI log for reading and appending; create it and its directories if missing."""
    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, MODE)
        os.fchmod(fd, MODE)  # regardless of the umask
        return fd
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def lock(fd: int, path: Path) -> None:
    """Lock the log: a server that was replaced, or a second one on the same Docker, would repeat lines."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process writes to it", str(path)) from error


def cut_torn_line(fd: int) -> None:
    """Cut off an incomplete line of a crash or a full disk at the end. Raise OSError if the end is not of a CRI log."""
    end, size = end_of_lines(fd), os.fstat(fd).st_size
    if size - end > BLOCK:
        raise OSError(errno.EINVAL, "what it ends in is not a line of a container log")
    if end != size:
        os.ftruncate(fd, end)


def rotated_logs(path: Path) -> list[Path]:
    """Return the rotated files of the log, newest first.

    Directories and links of such names are skipped. Compressed files are older than the others, whatever their time:
    the kubelet's have the time of their compression.
    """
    found = []
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(f"{path.name}.") or entry.name.endswith(".tmp"):
                continue
            with suppress(FileNotFoundError):
                seen = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(seen.st_mode):
                    age = (not entry.name.endswith(COMPRESSED), seen.st_mtime_ns)
                    found.append((age, Path(entry.path)))
    return [found_path for _, found_path in sorted(found, reverse=True)]
