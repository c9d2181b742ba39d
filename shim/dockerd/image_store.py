"""Finds the directories where the Engine keeps images and the writable layers of containers."""

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from shim.dockerd.overlay import upper_directory
from shim.engine.answers import EngineInfo

_KIND = "driver-type"
"""A key in DriverStatus that only the containerd image store has."""
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
_CONTENT = "io.containerd.content.v1.content"
_PROC = Path("/proc")
_SYSTEM_CONTAINERD = Path("/var/lib/containerd")

_LAYERS = {"overlay2": "overlay2", "fuse-overlayfs": "fuse-overlayfs", "vfs": "vfs/dir"}
"""The directories of layers below the data root, by graph driver. btrfs and zfs are missing: their layers share blocks,
which a walk cannot detect."""
_WRITABLE = {"vfs": "", "fuse-overlayfs": "diff"}
"""The path of the writable layer in a container's directory, by graph driver. For the drivers here, mounts do not name
the layer."""
_OVERLAYS = frozenset({"overlay2", "overlay", "overlayfs", "stargz"})
"""Graph drivers and snapshotters whose mounts name writable layers."""
_YOUNG_SECONDS = 30.0
"""Maximum age of a snapshot in the first class; see `_age_class`."""
_OLDEST = 6


def is_containerd_store(info: EngineInfo) -> bool:
    """Return whether the Engine keeps its images in containerd."""
    return [_KIND, _SNAPSHOTTER] in (info.driver_status or [])


def store_root(info: EngineInfo, *, pids: Iterable[int], proc: Path = _PROC) -> Path:
    """Return the directory of the image store, on a file system that the kubelet can map to a device.

    With a graph driver this is Docker's data root. With the containerd image store it is the snapshotter's directory,
    which the Engine does not report. It is read from the root mount of a running container, or else searched in the
    directories of Docker's containerd and of the machine's containerd. `pids` are first processes of containers.
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
    """Return the absolute path of a writable layer that is `relative` in mount options; None for other drivers.

    For an image of many layers, mount options with absolute paths exceed a page, the limit of mount(2). Then the driver
    `overlay2` mounts with paths relative to its directory, and the kernel reports these.
    """
    if info.driver not in _LAYERS or ".." in relative.parts:
        return None
    return Path(info.docker_root_dir, _LAYERS[info.driver], relative)


def writable_directory(info: EngineInfo, container_id: str) -> Path | None:
    """Return the writable layer from Docker's record of a container; None without a record.

    Return None also for drivers whose mounts name the layer.
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
    """Return the driver vfs's copy of the image below a writable layer; None for other drivers."""
    return layer.with_name(f"{layer.name}-init") if layer.match(f"{_LAYERS['vfs']}/*") else None


def has_writable_layers(info: EngineInfo) -> bool:
    """Return whether the writable layers of containers can be measured on disk."""
    return info.driver in _OVERLAYS or (info.driver in _WRITABLE and not is_containerd_store(info))


def store_parts(
    info: EngineInfo, root: Path, *, known: Collection[str], in_use: Collection[Path]
) -> dict[str, Path | None]:
    """Return the directories of the store's images by key.

    The content behind a key never changes, so a directory has to be measured once. The directory of a `known` key may
    be None. The store must be `is_measurable`. The writable layers of running containers, `in_use`, are omitted. Raise
    OSError if the store cannot be read.
    """
    if is_containerd_store(info):
        return {**dict(_snapshots(root / "snapshots", in_use=in_use)), **dict(_blobs(root.with_name(_CONTENT)))}
    return dict(_layers(root, info.driver, known=known))


def _layers(root: Path, driver: str, *, known: Collection[str]) -> Iterator[tuple[str, Path | None]]:
    """Yield image layers by chain id, a hash of the content. Docker registers only complete layers."""
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
    """Return whether the content of Docker's file is a name. After a power loss it may be empty or full of NULs."""
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _snapshots(directory: Path, *, in_use: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """Yield all snapshots except snapshots of running containers.

    Only containerd's database distinguishes images' snapshots, so layers of stopped containers are included.
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
    """Return how often the age of a snapshot has doubled since _YOUNG_SECONDS, up to a quarter of an hour.

    The disk does not show whether a layer is completely unpacked, so a snapshot is measured again in each class.
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
