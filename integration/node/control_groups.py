"""Cgroups of an isolated run, the only resource that runs share with the machine."""

import os
from pathlib import Path
from typing import Literal

CgroupDriver = Literal["cgroupfs", "systemd"]
"""Docker's cgroup driver: `native.cgroupdriver`."""

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "pydockershim-test-"
_SLICE = ".slice"


def parent_here(driver: CgroupDriver) -> str:
    """Return the cgroup parent for an isolated run of this process: an absolute path, or the name of a slice."""
    name = f"{_PREFIX}{os.getpid()}"
    # a dash would add a level to the slice
    return f"/{name}" if driver == "cgroupfs" else name.replace("-", "_") + _SLICE


def path_below(parent: str, *names: str) -> str:
    """Return the path of a cgroup below `parent`, named as by a kubelet: /kubepods.slice/kubepods-burstable.slice."""
    if not parent.endswith(_SLICE):
        return "/".join((parent, *names))
    parts = [parent.removesuffix(_SLICE), *names]
    return "".join(f"/{'-'.join(parts[:end])}{_SLICE}" for end in range(1, len(parts) + 1))


def path_of_container(parent: str, container: str) -> str:
    """Return the path of the cgroup that Docker creates for a container below the path `parent`."""
    return f"{parent}/docker-{container}.scope" if parent.endswith(_SLICE) else f"{parent}/{container}"


def sweep() -> None:
    """Remove the cgroups of runs that were killed before they could clean up."""
    for directory in _found(_PREFIX + "*"):
        if not Path("/proc", directory.name.removeprefix(_PREFIX)).exists():
            _remove_tree(directory)


def remove(parent: str) -> None:
    """Remove the cgroups at and below `parent` in every hierarchy; systemd removes a slice after its last process."""
    if not parent.endswith(_SLICE):
        for directory in _found(parent.strip("/")):
            _remove_tree(directory)


def of_children() -> list[Path]:
    """Return the cgroups of isolated runs that the main thread has started and that are still running."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [group for child in children for group in _found(_PREFIX + child)]


def _found(pattern: str) -> list[Path]:
    # Cgroup v2 has one hierarchy at the root, v1 a hierarchy per controller below it.
    return [*_ROOT.glob(pattern), *_ROOT.glob(f"*/{pattern}")]


def _remove_tree(directory: Path) -> None:
    for path, _, _ in os.walk(directory, topdown=False):
        Path(path).rmdir()
