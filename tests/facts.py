"""What the kernel reports of the process that runs the tests, and of files."""

import stat
from pathlib import Path


def open_descriptors() -> int:
    """How many descriptors are open, one for the listing itself included."""
    return len(list(Path("/proc/self/fd").iterdir()))


def own_score() -> int:
    """The OOM score adjustment of this process."""
    return int(Path("/proc/self/oom_score_adj").read_text())


def mode_of(path: Path) -> int:
    """The permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)
