"""Where on disk the Engine keeps its images and the writable layers of containers."""

from collections.abc import Iterable
from pathlib import Path

from shim.engine.interface import EngineInfo
from shim.overlay import upper_directory

_KIND = "driver-type"
"""Key in DriverStatus; a graph driver has no such row."""
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
_PROC = Path("/proc")
_SYSTEM_CONTAINERD = Path("/var/lib/containerd")


def is_containerd_store(info: EngineInfo) -> bool:
    """Whether the Engine keeps its images in containerd."""
    return [_KIND, _SNAPSHOTTER] in (info.driver_status or [])


def store_root(info: EngineInfo, *, pids: Iterable[int], proc: Path = _PROC) -> Path:
    """Give the directory of the image store, for a file system the kubelet can map to a device.

    With a graph driver that is Docker's data root. With the containerd image store it is the snapshotter's directory,
    which the Engine does not tell: it is read from the root mount of a running container (`pids`: their first
    processes), else looked for below Docker's own containerd and the machine's.
    """
    if not is_containerd_store(info):
        return Path(info.docker_root_dir)
    plugin = f"{_SNAPSHOTTER}.{info.driver}"
    for pid in pids:
        directory = _part_until(upper_directory(proc / str(pid)), plugin)
        if directory is not None:
            return directory
    containerds = (Path(info.docker_root_dir, "containerd/daemon"), _SYSTEM_CONTAINERD)
    found = [root / plugin for root in containerds if (root / plugin).is_dir()]
    return found[0] if found else Path(info.docker_root_dir)


def _part_until(path: Path, name: str) -> Path | None:
    return next((parent for parent in path.parents if parent.name == name), None)
