"""Carries out a TakeOrder: checks the checkpoint of a pod, and copies it to a private directory.

A checkpoint is as powerful as root, because criu gives processes any rights that the images contain. So it must belong
to root, and nobody else may write to it. The other checks detect damage and foreign files.
"""

import json
import os
import resource
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shim.criu import order as answers
from shim.criu.archive import ARCHIVE_LIMIT, Budget
from shim.criu.dump import Failure, check_wanted, find_criu
from shim.criu.layout import CONNECTION, CONTAINERS_LIMIT, FILES_LIMIT, MANIFEST, MANIFEST_LIMIT, VERSION, node_facts
from shim.criu.order import TakeOrder
from shim.oci_runtime.diff import check_entry
from shim.oci_runtime.order import OrderError
from shim.oci_runtime.restore import DIFF, IMAGES, SPEC

_OTHERS_MAY_WRITE = 0o022
_CHUNK = 1 << 20
_FEATURES_SHOWN = 5
_MEMORY_LIMIT = 256 << 20
"""Maximum bytes of address space, because a header of a tar archive may claim any size."""


def take(order: TakeOrder) -> None:
    """Check and copy a checkpoint. Raise Failure, Refused or OSError; the target is then removed."""
    find_criu(order.path)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    target = Path(order.target)
    try:
        with _opened_directory(order.directory) as directory:
            content = _manifest_bytes(directory)
            manifest = parsed_manifest(content)
            _check_node(manifest)
            target.mkdir(mode=0o700, parents=True)
            budget = Budget(limit=ARCHIVE_LIMIT)
            for entry in manifest["containers"]:
                _check_connections(entry, refuse=order.refuse_connections)
                _take_container(entry, directory, target, budget=budget)
            (target / MANIFEST).write_bytes(content)
        check_wanted()
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, MemoryError):
            raise _damaged("a header of a file is too large") from error
        raise


def _damaged(text: str) -> Failure:
    return Failure(answers.NOT_POSSIBLE, f"the checkpoint is damaged: {text}")


@contextmanager
def _opened_directory(path: str, *, below: int | None = None) -> Iterator[int]:
    """Open a directory for the block. Raise Failure unless only root may write to it."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    try:
        _check_owner(os.fstat(opened), path)
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _opened_file(name: str, *, below: int) -> Iterator[int]:
    """Open a file for the block. Raise Failure unless it is regular and only root may write to it."""
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=below)
    try:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise Failure(answers.NOT_POSSIBLE, f"{name} in the checkpoint is not a regular file")
        _check_owner(found, name)
        yield opened
    finally:
        os.close(opened)


def _check_owner(found: os.stat_result, name: str) -> None:
    if found.st_uid != 0 or found.st_mode & _OTHERS_MAY_WRITE:
        raise Failure(answers.NOT_POSSIBLE, f"{name} must belong to root, and nobody else may write to it")


def _manifest_bytes(directory: int) -> bytes:
    with _opened_file(MANIFEST, below=directory) as opened, open(opened, "rb", closefd=False) as file:
        content = file.read(MANIFEST_LIMIT + 1)
    if len(content) > MANIFEST_LIMIT:
        raise _damaged(f"{MANIFEST} has more than {MANIFEST_LIMIT} bytes")
    return content


def parsed_manifest(content: bytes) -> dict[str, Any]:
    """Parse and check a manifest: its version, its containers, and names and sizes of their files. Raise Failure."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        if manifest["version"] != VERSION:
            raise Failure(
                answers.NOT_POSSIBLE,
                f"the checkpoint has version {manifest['version']!r}, and this server reads version {VERSION}",
            )
        if not 0 < len(manifest["containers"]) <= CONTAINERS_LIMIT:
            raise _damaged(f"it has {len(manifest['containers'])} containers")
        for number, entry in enumerate(manifest["containers"]):
            if entry["directory"] != str(number):
                raise _damaged(f"container {number} is in directory {entry['directory']!r}")
            _check_files(entry["files"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(f"{MANIFEST} is not a manifest: {error!r}") from error
    return manifest


def _check_files(files: dict[str, list[int]]) -> None:
    if len(files) > FILES_LIMIT:
        raise _damaged(f"a container has {len(files)} files, at most {FILES_LIMIT} are read")
    for name in (DIFF, SPEC):
        if name not in files:
            raise _damaged(f"{name} is missing")
    for name, (size, checksum) in files.items():
        directory, slash, base = name.partition("/")
        is_image = directory == IMAGES and slash and base not in ("", ".", "..") and "/" not in base
        if (not is_image and name not in (DIFF, SPEC)) or "\0" in name:
            raise _damaged(f"{name!r} is not the name of a file of a checkpoint")
        if not (isinstance(size, int) and isinstance(checksum, int) and size >= 0):
            raise _damaged(f"{name} has no size")


def _check_node(manifest: dict[str, Any]) -> None:
    """Check that this node has the checkpoint's kernel, machine and CPU features. Raise Failure."""
    here = node_facts()
    for key, what in (("machine", "processors"), ("kernel", "Linux")):
        if manifest.get(key) != here[key]:
            text = f"the checkpoint was made with {what} {manifest.get(key)}, and this node has {here[key]}"
            raise Failure(answers.NOT_POSSIBLE, text)
    features = manifest.get("cpu")
    if not isinstance(features, list):
        raise _damaged("it does not say which features the processors had")
    missing = sorted(set(map(str, features)) - set(here["cpu"]))
    if missing:
        shown = ", ".join(missing[:_FEATURES_SHOWN]) + (", ..." if len(missing) > _FEATURES_SHOWN else "")
        raise Failure(answers.NOT_POSSIBLE, f"the processors of this node do not have {shown}")


def _check_connections(entry: dict[str, Any], *, refuse: bool) -> None:
    connected = [name for name in entry["files"] if name.startswith(f"{IMAGES}/{CONNECTION}")]
    if refuse and connected:
        text = f"container {entry.get('name')!r} had {len(connected)} established TCP connections"
        raise Failure(answers.NOT_POSSIBLE, text)


def _take_container(entry: dict[str, Any], directory: int, target: Path, *, budget: Budget) -> None:
    place = target / entry["directory"]
    (place / IMAGES).mkdir(mode=0o700, parents=True)
    with (
        _opened_directory(entry["directory"], below=directory) as below,
        _opened_directory(IMAGES, below=below) as images,
    ):
        for name, (size, checksum) in entry["files"].items():
            check_wanted()
            budget.take(size)
            base = name.removeprefix(f"{IMAGES}/")
            with _opened_file(base, below=below if base == name else images) as opened:
                _copy(opened, place / name, name=name, size=size, checksum=checksum)
    _check_diff(place / DIFF)


def _copy(opened: int, target: Path, *, name: str, size: int, checksum: int) -> None:
    """Copy a file. Raise Failure if its size or CRC-32 differs."""
    if os.fstat(opened).st_size != size:
        raise _damaged(f"{name} has another size")
    found = copied = 0
    with target.open("xb", buffering=0) as copy:
        while copied < size and (piece := os.read(opened, min(_CHUNK, size - copied))):
            check_wanted()
            copy.write(piece)
            found, copied = zlib.crc32(piece, found), copied + len(piece)
    if (copied, found) != (size, checksum):
        raise _damaged(f"{name} has another checksum")


def _check_diff(path: Path) -> None:
    """Check that `shim.oci_runtime.diff.apply` accepts each entry of a layer. Raise Failure."""
    try:
        with tarfile.open(path) as layer:
            for entry in layer:
                check_wanted()
                check_entry(entry)
                layer.members.clear()  # type: ignore[attr-defined] # tarfile would remember each
    except (tarfile.TarError, OrderError, ValueError, EOFError) as error:
        raise _damaged(f"{DIFF}: {error}") from error
