"""The CRI log of a container: created, appended to in whole lines, and created again after the kubelet rotated it."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from shim.logs.lines import BLOCK, end_of_lines

MODE = 0o640
"""Mode of a new file. Log agents read it with the permission of its group."""
DIRECTORY_MODE = 0o755
COMPRESSED = ".gz"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NOFOLLOW: a link in the log directory must not make the server append to, or truncate, another file."""


class Sink:
    """A CRI log. After an OSError the position in Docker's files must be found again (`resume`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """Return the descriptor of the open file; -1 if it is closed."""
        return self._fd

    def open(self) -> None:
        """Open the file, create it if it is missing, and cut off a torn line at its end.

        The file that was open before is closed, unless it is the same file. On an error it stays open.
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
        """Append whole lines in a single write, so that a reader never sees a part of a line."""
        written = os.write(self._fd, lines)
        if written != len(lines):
            cut_torn_line(self._fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def replaced(self) -> bool:
        """Return whether the open file was deleted and replaced, so that lines written to it would be lost.

        This happens when a kubelet that got no answer to a reopen renames the old file back.
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
    """Lock the log. Two servers on the same Docker, such as an old one that has not ended, would repeat lines."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process writes to it", str(path)) from error


def cut_torn_line(fd: int) -> None:
    """Cut off a torn line that a crash or a full disk left. Raise OSError if the file does not end like a CRI log."""
    end, size = end_of_lines(fd), os.fstat(fd).st_size
    if size - end > BLOCK:
        raise OSError(errno.EINVAL, "the end of the file is not a line of a container log")
    if end != size:
        os.ftruncate(fd, end)


def rotated_logs(path: Path) -> list[Path]:
    """Return the rotated files of the log, newest first.

    Directories and links are skipped. Compressed files count as older than all others: their modification time is the
    time when the kubelet compressed them.
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
