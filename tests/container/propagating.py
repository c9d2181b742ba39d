"""Mounts of each kind of propagation, for tests that run as root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mounts import need_root, unmount_below


@contextmanager
def propagating_mounts(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Yield a directory on a mount of each kind."""
    need_root()
    found = {}
    for kind in ("shared", "private", "slave"):
        point = tmp_path / kind
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
        subprocess.run(["mount", "--make-shared" if kind == "slave" else f"--make-{kind}", point], check=True)
        found[kind] = point
    # A slave mount needs a master: a second mount of the file system follows the first.
    subprocess.run(["mount", "--bind", found["slave"], found["slave"]], check=True)
    subprocess.run(["mount", "--make-slave", found["slave"]], check=True)
    for point in found.values():
        (point / "volume").mkdir()
    try:
        yield {kind: point / "volume" for kind, point in found.items()}
    finally:
        unmount_below(tmp_path)
