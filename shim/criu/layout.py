"""The layout of a pod's checkpoint: a directory with a manifest, and a subdirectory per container.

    pod.json                         the manifest, written last
    0/checkpoint/                    criu's images of the first container's processes
    0/rootfs-diff.tar                changes to its root file system, as a layer of an OCI image
    0/config.dump, spec.dump, ...    as in the archive of one container (`shim.criu.archive`)

The manifest lists the files that a restore needs, with their sizes and checksums. A restore reads no other file.
"""

import json
import os
import platform
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shim.oci_runtime.restore import DIFF, IMAGES, SPEC

MANIFEST = "pod.json"
VERSION = 1

MANIFEST_LIMIT = 16 << 20
"""Maximum bytes of a manifest. The labels of a container may take some MiB."""
CONTAINERS_LIMIT = 1000
"""Maximum containers of a checkpoint."""
FILES_LIMIT = 1 << 16
"""Maximum files of a container that a restore reads. criu writes a few per process."""
CONNECTION = "tcp-stream-"
"""Prefix of the names of criu's images of established TCP connections."""

_CHUNK = 1 << 20


def node_facts() -> dict[str, Any]:
    """Return the kernel, machine and CPU features of this node, which a restore compares. Raise OSError."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": sorted(_cpu_features(Path("/proc/cpuinfo").read_bytes())),
    }


def _cpu_features(cpuinfo: bytes) -> set[str]:
    """Return the features common to all processors."""
    found = [
        set(value.decode().split())
        for name, _, value in (line.partition(b":") for line in cpuinfo.split(b"\n"))
        if name.strip() in (b"flags", b"Features")
    ]
    return set.intersection(*found) if found else set()


def manifest(containers: list[dict[str, Any]]) -> bytes:
    """Return the content of the manifest file."""
    return json.dumps({"version": VERSION, **node_facts(), "containers": containers}).encode()


def described(path: Path, *, check: Callable[[], None]) -> tuple[int, int]:
    """Return size and CRC-32 of a file. `check` is called before each read and may raise to abort. Raise OSError."""
    size = checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            check()
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return size, checksum


def needed_files(directory: Path, *, check: Callable[[], None]) -> dict[str, tuple[int, int]]:
    """Return size and CRC-32 of each file in a container's directory that a restore needs, by name. Raise OSError."""
    images = sorted(f"{IMAGES}/{name}" for name in os.listdir(directory / IMAGES))  # noqa: PTH208
    return {name: described(directory / name, check=check) for name in (*images, DIFF, SPEC)}
