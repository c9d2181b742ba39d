"""Control groups of an isolated run, by who makes them; the one thing that runs share with the machine."""

import os
from pathlib import Path
from typing import Literal

CgroupDriver = Literal["cgroupfs", "systemd"]
"""Who makes the control groups of containers, as Docker names it: `native.cgroupdriver`."""

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "pydockershim-test-"
_SLICE = ".slice"


def parent_here(driver: CgroupDriver) -> str:
    """Return the parent for an isolated run of this process: an absolute path, or the name of a slice."""
    name = f"{_PREFIX}{os.getpid()}"
    return f"/{name}" if driver == "cgroupfs" else name.replace("-", "_") + _SLICE  # a dash would make a level


def path_below(parent: str, *names: str) -> str:
    """Return the path of a group below, as a kubelet names that of a pod: /kubepods.slice/kubepods-burstable.slice."""
    if not parent.endswith(_SLICE):
        return "/".join((parent, *names))
    parts = [parent.removesuffix(_SLICE), *names]
    return "".join(f"/{'-'.join(parts[:end])}{_SLICE}" for end in range(1, len(parts) + 1))


def path_of_container(parent: str, container: str) -> str:
    """Return the path of the group that Docker makes for a container below `parent`, itself a path."""
    return f"{parent}/docker-{container}.scope" if parent.endswith(_SLICE) else f"{parent}/{container}"


def sweep() -> None:
    """Remove the groups of runs whose maker was killed before it could do so."""
    for directory in _found(_PREFIX + "*"):
        if not Path("/proc", directory.name.removeprefix(_PREFIX)).exists():
            _remove_tree(directory)


def remove(parent: str) -> None:
    """Remove the groups at and below `parent` in every hierarchy; a slice goes with its last process."""
    if not parent.endswith(_SLICE):
        for directory in _found(parent.strip("/")):
            _remove_tree(directory)


def of_children() -> list[Path]:
    """Return the groups of isolated runs that the main thread has started, and that have not ended."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [group for child in children for group in _found(_PREFIX + child)]


def _found(pattern: str) -> list[Path]:
    # Version 2 has one hierarchy at the root, version 1 one per controller below it.
    return [*_ROOT.glob(pattern), *_ROOT.glob(f"*/{pattern}")]


def _remove_tree(directory: Path) -> None:
    for path, _, _ in os.walk(directory, topdown=False):
        Path(path).rmdir()
