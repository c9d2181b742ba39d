"""Where a container's writable layer is on disk: from the mounts of its first process, alike for both image stores."""

from collections.abc import Iterable
from pathlib import Path


def upper_directory(process: Path) -> Path:
    """Give the writable layer of the container a process (`/proc/<pid>`) runs in.

    An empty path when it has none that can be seen, or the process is gone.
    """
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return Path()
    return root_upper_directory(mounts)


def root_upper_directory(mounts: Iterable[str]) -> Path:
    """Read `upperdir=` of the overlay mounted at `/` from lines of mountinfo (proc(5)); empty when there is none."""
    for line in mounts:
        fields = line.split()
        if fields[4] == "/":
            options = dict(option.partition("=")[::2] for option in fields[-1].split(","))
            return Path(options.get("upperdir", ""))
    return Path()
