"""Where a container's writable layer is on disk: from the mounts of its first process, alike for both image stores."""

import re
from collections.abc import Iterable
from pathlib import Path

_MOUNT_POINT = 4
"""Field of mountinfo."""
_ESCAPE = re.compile(r"\\([0-3][0-7]{2})")


def upper_directory(process: Path) -> Path:
    """Return the writable layer of the container a process (`/proc/<pid>`) runs in.

    An empty path when none is visible, or the process is gone. It may be a relative one, as in
    `shim.engine.image_store.layer_directory`.
    """
    return root_upper_directory(_mounts(process))


def upper_directories(process: Path) -> set[Path]:
    """Return the writable layers of all running containers, from the mounts of the daemon (`/proc/<pid>`)."""
    uppers = {_upper(line) for line in _mounts(process) if " overlay " in line}
    return uppers - {Path()}


def root_upper_directory(mounts: Iterable[str]) -> Path:
    """Read `upperdir=` of the overlay mounted at `/` from lines of mountinfo (proc(5)); empty when there is none."""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) > _MOUNT_POINT and fields[_MOUNT_POINT] == "/":
            return _upper(line)
    return Path()


def _mounts(process: Path) -> list[str]:
    try:
        # Processes of the container choose names of mounts: they may be no text, or contain line separators.
        return (process / "mountinfo").read_text(errors="surrogateescape").split("\n")
    except OSError:  # it has ended
        return []


def _upper(line: str) -> Path:
    """Read `upperdir=` from the options of the file system, which end a line of mountinfo."""
    options = dict(option.partition("=")[::2] for option in line.rpartition(" ")[2].split(","))
    return Path(_unescape(options.get("upperdir", "")))


def _unescape(path: str) -> str:
    """Undo what the kernel writes for spaces, commas and the like: their number in three octal digits."""
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 8)), path)
