"""The checkpoint of a pod: a directory with a manifest, and a directory for each container.

    pod.json                         the manifest, written last
    0/checkpoint/                    criu's images of the first container's processes
    0/rootfs-diff.tar                changes of its root file system: a layer of an OCI image
    0/config.dump, spec.dump, ...    as in the archive of one container (`shim.criu.archive`)

A restore reads the files that the manifest names, with their sizes and checksums: those that it needs.
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
"""Most bytes of a manifest. A container of Docker's has at most some MiB of labels."""
CONTAINERS_LIMIT = 1000
"""Most containers of one checkpoint."""
FILES_LIMIT = 1 << 16
"""Most files of one container that a restore reads: criu writes a few for each process."""
CONNECTION = "tcp-stream-"
"""How the name of the image of an established TCP connection begins."""

_CHUNK = 1 << 20


def node_facts() -> dict[str, Any]:
    """Return what a node needs in common with the node of a checkpoint. OSError."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": sorted(_cpu_features(Path("/proc/cpuinfo").read_bytes())),
    }


def _cpu_features(cpuinfo: bytes) -> set[str]:
    """Return the features that all processors have."""
    found = [
        set(value.decode().split())
        for name, _, value in (line.partition(b":") for line in cpuinfo.split(b"\n"))
        if name.strip() in (b"flags", b"Features")
    ]
    return set.intersection(*found) if found else set()


def manifest(containers: list[dict[str, Any]]) -> bytes:
    """Return the content of a manifest."""
    return json.dumps({"version": VERSION, **node_facts(), "containers": containers}).encode()


def described(path: Path, *, check: Callable[[], None]) -> tuple[int, int]:
    """Return size and CRC-32 of a file. `check` is called before each read, and ends the work if it raises. OSError."""
    size = checksum = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            check()
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
    return size, checksum


def needed_files(directory: Path, *, check: Callable[[], None]) -> dict[str, tuple[int, int]]:
    """Return size and CRC-32 of the files of a container that a restore needs, by name. OSError."""
    images = sorted(f"{IMAGES}/{name}" for name in os.listdir(directory / IMAGES))  # noqa: PTH208
    return {name: described(directory / name, check=check) for name in (*images, DIFF, SPEC)}
