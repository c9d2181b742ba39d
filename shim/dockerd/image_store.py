"""Finds the directories where the Engine keeps images and the writable layers of containers."""

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from shim.dockerd.overlay import upper_directory
from shim.engine.answers import EngineInfo

_KIND = "driver-type"
"""A key in DriverStatus, which graph drivers lack."""
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
_CONTENT = "io.containerd.content.v1.content"
_PROC = Path("/proc")
_SYSTEM_CONTAINERD = Path("/var/lib/containerd")

_LAYERS = {"overlay2": "overlay2", "fuse-overlayfs": "fuse-overlayfs", "vfs": "vfs/dir"}
"""The directories of layers below the data root, by graph driver. Drivers whose layers are separate file systems
(btrfs, zfs) are missing: their layers share blocks, which a walk does not show."""
_WRITABLE = {"vfs": "", "fuse-overlayfs": "diff"}
"""For graph drivers whose mounts do not name writable layers: the writable layer in the directory of a container."""
_OVERLAYS = frozenset({"overlay2", "overlay", "overlayfs", "stargz"})
"""Graph drivers and snapshotters whose mounts name writable layers."""
_YOUNG_SECONDS = 30.0
"""The oldest age of a snapshot in the first class; see `_age_class`."""
_OLDEST = 6


def is_containerd_store(info: EngineInfo) -> bool:
    """Return whether the Engine keeps its images in containerd."""
    return [_KIND, _SNAPSHOTTER] in (info.driver_status or [])


def store_root(info: EngineInfo, *, pids: Iterable[int], proc: Path = _PROC) -> Path:
    """Return the directory of the image store, on a file system that the kubelet can map to a device.

    With a graph driver this is Docker's data root. With the containerd image store it is the directory of the
    snapshotter, which the Engine does not report. It is read from the root mount of a running container (`pids` are
    first processes), or else searched below Docker's containerd and the machine's containerd.
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


def container_root(info: EngineInfo, container_id: str) -> Path | None:
    """Return the mount point of a container's root in the containerd image store; None with graph drivers."""
    return Path(info.docker_root_dir, "rootfs", info.driver, container_id) if is_containerd_store(info) else None


def is_measurable(info: EngineInfo) -> bool:
    """Return whether image layers can be measured on disk."""
    return is_containerd_store(info) or info.driver in _LAYERS


def layer_directory(info: EngineInfo, relative: Path) -> Path | None:
    """Return the absolute path of a writable layer whose mount has a relative path; None for other drivers.

    For an image of many layers, mount options with absolute paths exceed a page, the limit of mount(2). Then the driver
    `overlay2` mounts with paths relative to its directory, and the kernel shows them unchanged.
    """
    if info.driver not in _LAYERS or ".." in relative.parts:
        return None
    return Path(info.docker_root_dir, _LAYERS[info.driver], relative)


def writable_directory(info: EngineInfo, container_id: str) -> Path | None:
    """Return the writable layer from Docker's record of a container, for drivers whose mounts do not name it.

    None for other drivers, and without a record.
    """
    if info.driver not in _WRITABLE or is_containerd_store(info):
        return None
    root = Path(info.docker_root_dir)
    try:
        record = root / "image" / info.driver / "layerdb/mounts" / container_id / "mount-id"
        name = os.fsdecode(record.read_bytes())
    except OSError:  # removed meanwhile
        return None
    return root / _LAYERS[info.driver] / name / _WRITABLE[info.driver] if _is_name(name) else None


def image_copy(layer: Path) -> Path | None:
    """Return the copy of the image from which the driver vfs made a writable layer; None for other drivers."""
    return layer.with_name(f"{layer.name}-init") if layer.match(f"{_LAYERS['vfs']}/*") else None


def has_writable_layers(info: EngineInfo) -> bool:
    """Return whether the writable layers of containers can be measured on disk."""
    return info.driver in _OVERLAYS or (info.driver in _WRITABLE and not is_containerd_store(info))


def store_parts(
    info: EngineInfo, root: Path, *, known: Collection[str], in_use: Collection[Path]
) -> dict[str, Path | None]:
    """Return the directories below `root` that hold images, by keys whose content never changes.

    So each directory needs to be measured once; the directory of a `known` key may be None. The store must be
    `is_measurable`. `in_use` are the writable layers of running containers, which are left out. Raise OSError if the
    store cannot be read.
    """
    if is_containerd_store(info):
        return {**dict(_snapshots(root / "snapshots", in_use=in_use)), **dict(_blobs(root.with_name(_CONTENT)))}
    return dict(_layers(root, info.driver, known=known))


def _layers(root: Path, driver: str, *, known: Collection[str]) -> Iterator[tuple[str, Path | None]]:
    """Yield image layers by chain id, which the content determines. Docker registers only complete layers."""
    for chain in _entries(root / "image" / driver / "layerdb/sha256"):
        if chain.name in known:
            yield chain.name, None
            continue
        try:
            name = os.fsdecode((chain / "cache-id").read_bytes())
        except FileNotFoundError:  # removed meanwhile
            continue
        if _is_name(name):
            yield chain.name, root / _LAYERS[driver] / name


def _is_name(name: str) -> bool:
    """Return whether the content of Docker's file is a name: a power loss may leave the file empty or full of NULs."""
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _snapshots(directory: Path, *, in_use: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """Yield all snapshots except for the snapshots of running containers.

    Only containerd's database knows which snapshots belong to images, so layers of stopped containers are included.
    """
    running = {upper.parent for upper in in_use}
    for snapshot in directory.iterdir():
        if snapshot in running:
            continue
        try:
            changed = snapshot.stat().st_mtime
        except FileNotFoundError:
            continue
        yield f"{snapshot.name} {_age_class(time.time() - changed)}", snapshot


def _age_class(seconds: float) -> int:
    """Return how often the age of a snapshot has doubled, up to a quarter of an hour.

    The disk does not show when a layer is completely unpacked, so each class is measured again.
    """
    return min(_OLDEST, max(0, math.ceil(math.log2(max(seconds, 1.0) / _YOUNG_SECONDS))))


def _blobs(content: Path) -> Iterator[tuple[str, Path]]:
    """Yield the directories of containerd's compressed blobs."""
    for algorithm in _entries(content / "blobs"):
        yield f"{algorithm.name} {algorithm.stat().st_mtime_ns}", algorithm


def _entries(directory: Path) -> list[Path]:
    """List a directory that the Engine creates with its first image. Raise OSError if its parent is missing too."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        directory.parent.stat()
        return []


def _part_until(path: Path, name: str) -> Path | None:
    return next((parent for parent in path.parents if parent.name == name), None)
