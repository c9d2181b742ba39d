"""ImageFsInfo."""

import os
import time
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject
from shim.errors import ShimError
from shim.image.store import store_root
from shim.runtime import Runtime

_PATIENCE = 2.0
"""Seconds the first caller waits for the first measurement; every later answer is at hand."""


def image_fs_info(rt: Runtime) -> pb.ImageFsInfoResponse:
    """Tell the file system of images and containers and how much of it images use.

    Measuring can take the Engine minutes, so it happens behind the scenes, and its last result is the answer. Until
    there is one, the sizes of all images are added up, which counts layers they share more than once.
    """
    usage = rt.image_usage.get(lambda: _measured(rt), patience=_PATIENCE) or _estimated(rt)
    # Docker keeps images and writable layers in one place. Both are told all the same: a kubelet that gets no
    # container file system stops its garbage collection (KubeletSeparateDiskGC), and by the same mount point it sees
    # that there is one file system.
    return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[_written(rt, usage.fs_id)])


def _written(rt: Runtime, fs_id: pb.FilesystemIdentifier) -> pb.FilesystemUsage:
    """Add up what the running containers have written to their layers, as measured in the background."""
    layers = list(rt.samples.layers.values())
    return pb.FilesystemUsage(
        timestamp=max((layer.at for layer in layers), default=time.time_ns()),
        fs_id=fs_id,
        used_bytes=pb.UInt64Value(value=sum(layer.used_bytes for layer in layers)),
        inodes_used=pb.UInt64Value(value=sum(layer.inodes for layer in layers)),
    )


def _measured(rt: Runtime) -> pb.FilesystemUsage:
    used = _layers_size(dict(rt.engine.disk_usage()))
    if used is None:
        used = _sum_of_sizes(rt)
    root = _root(rt)
    try:
        inodes = os.statvfs(root)
    except OSError as error:
        raise ShimError(f"measure the image store {root}: {error.strerror}") from error
    usage = _usage(root, used_bytes=used)
    # Of the whole file system: walking the store would read every directory of every image.
    usage.inodes_used.value = inodes.f_files - inodes.f_ffree
    return usage


def _estimated(rt: Runtime) -> pb.FilesystemUsage:
    return _usage(_root(rt), used_bytes=_sum_of_sizes(rt))


def _usage(root: Path, *, used_bytes: int) -> pb.FilesystemUsage:
    return pb.FilesystemUsage(
        timestamp=time.time_ns(),
        fs_id=pb.FilesystemIdentifier(mountpoint=str(root)),
        used_bytes=pb.UInt64Value(value=used_bytes),
    )


def _root(rt: Runtime) -> Path:
    pids = (sandbox.life.pid for sandbox in rt.view.sandboxes() if sandbox.life.running)
    return store_root(rt.facts.info(), pids=pids)


def _sum_of_sizes(rt: Runtime) -> int:
    return sum(record.size for record in rt.view.images())


def _layers_size(usage: JsonObject) -> int | None:
    """Read the size of all layers, each counted once: `ImageUsage` since API 1.52, `LayersSize` before."""
    images = usage.get("ImageUsage")
    size = images.get("TotalSize") if isinstance(images, dict) else usage.get("LayersSize")
    return size if isinstance(size, int) and size >= 0 else None
