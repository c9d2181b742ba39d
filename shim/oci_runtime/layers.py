"""Overlay mounts with id-mapped layers.

The kernel cannot id-map a merged overlay, but it can id-map its layers. All layers are below one directory. While this
process mounts the overlay, an id-mapped clone of the directory covers it, in a private mount namespace. So the overlay
keeps Docker's options, which Docker and a later start read from the mount table.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

import os

from shim.base.proc import unescape
from shim.oci_runtime import kernel

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from shim.base.proc import Mount

OVERLAY = b"overlay"
_ACCESS = (b"rw", b"ro")


class Layers:
    """The layers of an overlay mount."""

    def __init__(self, *, directory: str, options: bytes, lower: tuple[bytes, ...]) -> None:
        self.directory = directory
        """The directory above all layers; relative layer names start here."""
        self.options = options
        """The options of the mount."""
        self.lower = lower
        """Uppermost first, starting with the writable layer."""


def layers_of(mount: Mount) -> Layers:
    """Return the layers of an overlay.

    Raise OSError for another file system, or if the layers have no common directory.
    """
    if mount.kind != OVERLAY:
        raise OSError(f"{mount.point} is on {os.fsdecode(mount.kind)}, not on an overlay")
    options = [option for option in _split(unescape(mount.fields[-1]), b",") if option not in _ACCESS]
    lower: list[bytes] = []
    writable: dict[bytes, bytes] = {}
    for option in options:
        key, _, value = option.partition(b"=")
        if key in (b"lowerdir", b"lowerdir+"):
            lower += _split(value, b":")
        elif key in (b"upperdir", b"workdir"):
            writable[key] = value
    names = [*lower, *writable.values()]
    upper = [writable[b"upperdir"]] if b"upperdir" in writable else []
    base = _relative_to(upper, mount)
    is_relative = any(name[:1] != b"/" for name in names)
    directory = base if is_relative else os.path.commonpath([os.path.dirname(os.fsdecode(name)) for name in names])
    if directory == "/" or not all(
        os.path.join(base, os.fsdecode(name)).startswith(f"{directory.rstrip('/')}/") for name in names
    ):
        raise OSError(f"the layers of {mount.point} have no directory in common")
    return Layers(directory=directory, options=b",".join(options), lower=(*upper, *lower))


def _split(text: bytes, separator: bytes) -> list[bytes]:
    """Split at separators that no backslash precedes."""
    first, *others = text.split(separator)
    found = [first]
    for piece in others:
        if found[-1].endswith(b"\\"):
            found[-1] += separator + piece
        else:
            found.append(piece)
    return found


def _relative_to(upper: list[bytes], mount: Mount) -> str:
    """Return the directory that relative layer names start from.

    Docker's overlay2 names all layers relative to the parent of the container's own directory, in which the mount is;
    containerd names the lower layers relative to the parent of the writable layer's directory.
    """
    place = os.fsdecode(upper[0]) if upper and upper[0][:1] == b"/" else mount.point
    return os.path.dirname(os.path.dirname(place))


class FileIds:
    """Access files with these host ids inside the block, with all capabilities of root."""

    def __init__(self, uid: int, gid: int) -> None:
        self._ids = uid, gid

    def __enter__(self) -> None:
        kernel.set_file_ids(*self._ids)

    def __exit__(self, *_: object) -> None:
        kernel.set_file_ids(0, 0)


class Covered:
    """Cover the directory of layers with an id-mapped clone, and make it the working directory, inside the block."""

    def __init__(self, layers: Layers, tree: int) -> None:
        self._directory = layers.directory
        self._tree = tree

    def __enter__(self) -> None:
        kernel.attach(self._tree, self._directory)
        try:
            os.chdir(self._directory)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        os.chdir("/")
        kernel.unmount(self._directory)


def mapped_clone(layers: Layers, mapping: int) -> int:
    """Return a detached id-mapped clone of the directory of layers."""
    opened = os.open(layers.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        tree = kernel.clone_tree(opened)
        kernel.map_ids(tree, mapping, private=True)
    finally:
        os.close(opened)
    return tree


def read_only_options(layers: Layers, *, empty: str) -> bytes:
    """Return the options to mount all layers read-only. `empty` is an empty directory: an overlay needs two layers."""
    lower = layers.lower if len(layers.lower) > 1 else (*layers.lower, os.fsencode(empty))
    return b"lowerdir=" + b":".join(lower)
