"""Writes the CRI log of a container in whole lines, and creates it again after the kubelet has rotated it."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from shim.logs.lines import BLOCK, end_of_lines

MODE = 0o640
"""Mode of a new file. Log agents may read it as members of its group."""
DIRECTORY_MODE = 0o755
COMPRESSED = ".gz"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NOFOLLOW: through a link in the log directory the server would append to, or truncate, another file."""


class Sink:
    """A CRI log. After an OSError the position in Docker's files must be found again (`resume`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """The descriptor of the open file; -1 if it is closed."""
        return self._fd

    def open(self) -> None:
        """Open the file, create it if it is missing, and cut off a torn last line.

        A previous file is closed, unless it is the same file. If this fails, the previous file stays open.
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
        """Append whole lines in a single write, so that a reader never sees a partial line."""
        written = os.write(self._fd, lines)
        if written != len(lines):
            cut_torn_line(self._fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def replaced(self) -> bool:
        """Return whether the open file was deleted and replaced, so that further lines would be lost.

        This happens if a kubelet gets no answer to a reopen, and renames the old file back.
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
    """Lock the log, because two servers on the same Docker would repeat lines. Raise OSError if it is locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process writes to it", str(path)) from error


def cut_torn_line(fd: int) -> None:
    """Cut off a torn last line after a crash or a full disk. Raise OSError if the file does not end like a CRI log."""
    end, size = end_of_lines(fd), os.fstat(fd).st_size
    if size - end > BLOCK:
        raise OSError(errno.EINVAL, "the end of the file is not a line of a container log")
    if end != size:
        os.ftruncate(fd, end)


def rotated_logs(path: Path) -> list[Path]:
    """Return the rotated files of the log, newest first.

    Directories and links are skipped. Compressed files count as older than all others, because their modification time
    is only the time of their compression.
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
