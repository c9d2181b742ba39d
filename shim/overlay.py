"""Where a container's writable layer is on disk: from the mounts of its first process, alike for both image stores."""

from collections.abc import Iterable
from pathlib import Path

_MOUNT_POINT = 4
"""Field of mountinfo."""


def upper_directory(process: Path) -> Path:
    """Give the writable layer of the container a process (`/proc/<pid>`) runs in.

    An empty path when it has none that can be seen, or the process is gone.
    """
    try:
        # The container's processes name mounts as they like: bytes that are no text, and characters that end lines.
        mounts = (process / "mountinfo").read_text(errors="surrogateescape").split("\n")
    except OSError:  # it ended meanwhile
        return Path()
    return root_upper_directory(mounts)


def upper_directories(process: Path) -> set[Path]:
    """Give the writable layers of all containers that run, as the mounts of the daemon (`/proc/<pid>`) tell."""
    try:
        mounts = (process / "mountinfo").read_text(errors="surrogateescape").split("\n")
    except OSError:
        return set()
    return {Path(upper) for line in mounts if " overlay " in line and (upper := _options(line).get("upperdir"))}


def root_upper_directory(mounts: Iterable[str]) -> Path:
    """Read `upperdir=` of the overlay mounted at `/` from lines of mountinfo (proc(5)); empty when there is none."""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) > _MOUNT_POINT and fields[_MOUNT_POINT] == "/":
            return Path(_options(line).get("upperdir", ""))
    return Path()


def _options(line: str) -> dict[str, str]:
    """Read the options of the file system, which end a line of mountinfo."""
    return dict(option.partition("=")[::2] for option in line.rpartition(" ")[2].split(","))
