"""ImageFsInfo."""

import time

from shim.api.v1 import api_pb2 as pb
from shim.dockerd.image_store import store_root
from shim.runtime import Runtime
from shim.stats_cache import StoreUsage


def image_fs_info(rt: Runtime) -> pb.ImageFsInfoResponse:
    """Return the file system of images and containers, and their usage as measured in the background.

    Until the first walk of the store is complete, the usage is the smaller of two values: the sum of all image sizes,
    which counts shared layers several times, and the used space of the file system.
    """
    usage = _image_usage(rt)
    # Docker keeps images and writable layers on the same file system, but both lists are required: without a container
    # file system, the kubelet stops its garbage collection (KubeletSeparateDiskGC). The kubelet compares the mount
    # points to detect a single file system.
    return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[_written(rt, usage.fs_id)])


def _image_usage(rt: Runtime) -> pb.FilesystemUsage:
    rt.view.sandboxes()  # raises Unavailable without Docker
    known = rt.stats_cache.images
    if known is not None and known.is_measured:
        return _usage(known, used_bytes=known.used_bytes, at=known.at)
    sizes = sum(record.size for record in rt.view.images.all())
    if known is None:
        return _unmeasured(rt, used_bytes=sizes)
    return _usage(known, used_bytes=min(sizes, known.used_bytes), at=time.time_ns())


def _usage(known: StoreUsage, *, used_bytes: int, at: int) -> pb.FilesystemUsage:
    return pb.FilesystemUsage(
        timestamp=at,
        fs_id=pb.FilesystemIdentifier(mountpoint=str(known.root)),
        used_bytes=pb.UInt64Value(value=used_bytes),
        inodes_used=pb.UInt64Value(value=known.inodes),
    )


def _unmeasured(rt: Runtime, *, used_bytes: int) -> pb.FilesystemUsage:
    """Return the usage for a store that is not measured yet, or that is not on a disk of this machine."""
    root = store_root(rt.facts.info(), pids=())
    return pb.FilesystemUsage(
        timestamp=time.time_ns(),
        fs_id=pb.FilesystemIdentifier(mountpoint=str(root)),
        used_bytes=pb.UInt64Value(value=used_bytes),
    )


def _written(rt: Runtime, fs_id: pb.FilesystemIdentifier) -> pb.FilesystemUsage:
    """Return the total usage of running containers' writable layers, as measured in the background."""
    layers = list(rt.stats_cache.layers.values())
    return pb.FilesystemUsage(
        timestamp=max((layer.at for layer in layers), default=time.time_ns()),
        fs_id=fs_id,
        used_bytes=pb.UInt64Value(value=sum(layer.used_bytes for layer in layers)),
        inodes_used=pb.UInt64Value(value=sum(layer.inodes for layer in layers)),
    )
