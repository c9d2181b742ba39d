"""Where on disk the Engine keeps its images and the writable layers of containers."""

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from shim.engine.answers import EngineInfo
from shim.engine.overlay import upper_directory

_KIND = "driver-type"
"""Key in DriverStatus; a graph driver has no such row."""
_SNAPSHOTTER = "io.containerd.snapshotter.v1"
_CONTENT = "io.containerd.content.v1.content"
_PROC = Path("/proc")
_SYSTEM_CONTAINERD = Path("/var/lib/containerd")

_LAYERS = {"overlay2": "overlay2", "fuse-overlayfs": "fuse-overlayfs", "vfs": "vfs/dir"}
"""By graph driver, where below the data root it has the directories of layers. Those whose layers are file systems of
their own (btrfs, zfs) share blocks between them, which no walk would see."""
_WRITABLE = {"vfs": "", "fuse-overlayfs": "diff"}
"""By graph driver whose mounts do not name writable layers: where in its directory a container has its own."""
_OVERLAYS = frozenset({"overlay2", "overlay", "overlayfs", "stargz"})
"""Graph drivers and snapshotters whose mounts name writable layers."""
_YOUNG_SECONDS = 30.0
"""Age up to which a snapshot is of the first class; see `_age_class`."""
_OLDEST = 6


def is_containerd_store(info: EngineInfo) -> bool:
    """Whether the Engine keeps its images in containerd."""
    return [_KIND, _SNAPSHOTTER] in (info.driver_status or [])


def store_root(info: EngineInfo, *, pids: Iterable[int], proc: Path = _PROC) -> Path:
    """Return the directory of the image store, on a file system the kubelet can map to a device.

    With a graph driver that is Docker's data root. With the containerd image store it is the snapshotter's directory,
    which the Engine does not report: it is read from the root mount of a running container (`pids`: their first
    processes), else searched below Docker's own containerd and the machine's.
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
    """Return where Docker mounts the root of a container with the containerd image store; None with graph drivers."""
    return Path(info.docker_root_dir, "rootfs", info.driver, container_id) if is_containerd_store(info) else None


def is_measurable(info: EngineInfo) -> bool:
    """Whether the layers of images can be distinguished on disk."""
    return is_containerd_store(info) or info.driver in _LAYERS


def layer_directory(info: EngineInfo, relative: Path) -> Path | None:
    """Return the absolute path of a writable layer that its mount names by a relative one; None for other drivers.

    The options of an image of many layers are longer than a page, the most that mount(2) takes. Then the driver
    `overlay2` mounts from its own directory, with paths relative to it, and the kernel repeats them as they were given.
    """
    if info.driver not in _LAYERS or ".." in relative.parts:
        return None
    return Path(info.docker_root_dir, _LAYERS[info.driver], relative)


def writable_directory(info: EngineInfo, container_id: str) -> Path | None:
    """Return the writable layer of a container whose mounts do not name it, by Docker's own record of it.

    None for other drivers, and where Docker has no such record.
    """
    if info.driver not in _WRITABLE or is_containerd_store(info):
        return None
    root = Path(info.docker_root_dir)
    try:
        record = root / "image" / info.driver / "layerdb/mounts" / container_id / "mount-id"
        name = os.fsdecode(record.read_bytes())
    except OSError:  # removed in the meantime
        return None
    return root / _LAYERS[info.driver] / name / _WRITABLE[info.driver] if _is_name(name) else None


def image_copy(layer: Path) -> Path | None:
    """Return the copy of the image that a writable layer of the driver vfs began as; None for one of another driver."""
    return layer.with_name(f"{layer.name}-init") if layer.match(f"{_LAYERS['vfs']}/*") else None


def has_writable_layers(info: EngineInfo) -> bool:
    """Whether what a container has written can be distinguished on disk."""
    return info.driver in _OVERLAYS or (info.driver in _WRITABLE and not is_containerd_store(info))


def store_parts(
    info: EngineInfo, root: Path, *, known: Collection[str], in_use: Collection[Path]
) -> dict[str, Path | None]:
    """Return the directories below `root` that hold images, by keys whose content never changes.

    So each is measured once; the directory of a key that is `known` may be left out (None). The store is one that
    `is_measurable`. `in_use` are the writable layers of running containers, which are no part of it. Raise OSError when
    the store cannot be read.
    """
    if is_containerd_store(info):
        return {**dict(_snapshots(root / "snapshots", in_use=in_use)), **dict(_blobs(root.with_name(_CONTENT)))}
    return dict(_layers(root, info.driver, known=known))


def _layers(root: Path, driver: str, *, known: Collection[str]) -> Iterator[tuple[str, Path | None]]:
    """Yield the layers of images by chain id, which their content determines; Docker registers complete ones only."""
    for chain in _entries(root / "image" / driver / "layerdb/sha256"):
        if chain.name in known:
            yield chain.name, None
            continue
        try:
            name = os.fsdecode((chain / "cache-id").read_bytes())
        except FileNotFoundError:  # removed in the meantime
            continue
        if _is_name(name):
            yield chain.name, root / _LAYERS[driver] / name


def _is_name(name: str) -> bool:
    """Whether a file of Docker's holds a name: a power loss may have left it empty or full of NULs."""
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _snapshots(directory: Path, *, in_use: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """Yield all snapshots but those of running containers.

    Only containerd's database knows which of them belong to images. Layers of stopped containers count as well.
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

    Nothing on disk shows when a layer is completely unpacked, so it is measured again from time to time.
    """
    return min(_OLDEST, max(0, math.ceil(math.log2(max(seconds, 1.0) / _YOUNG_SECONDS))))


def _blobs(content: Path) -> Iterator[tuple[str, Path]]:
    """Yield the directories in which containerd keeps the compressed blobs it has pulled."""
    for algorithm in _entries(content / "blobs"):
        yield f"{algorithm.name} {algorithm.stat().st_mtime_ns}", algorithm


def _entries(directory: Path) -> list[Path]:
    """List a directory that the Engine makes with its first image; OSError when the one around it is missing, too."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        directory.parent.stat()
        return []


def _part_until(path: Path, name: str) -> Path | None:
    return next((parent for parent in path.parents if parent.name == name), None)
