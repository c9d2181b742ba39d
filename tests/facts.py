"""Facts of the test process and of files, from the kernel."""

import stat
from pathlib import Path


def open_descriptors() -> int:
    """Return the number of open descriptors, including the listing's."""
    return len(list(Path("/proc/self/fd").iterdir()))


def own_score() -> int:
    """Return the OOM score adjustment of this process."""
    return int(Path("/proc/self/oom_score_adj").read_text())


def mode_of(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)
