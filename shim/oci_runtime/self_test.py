"""Tests with a real mount whether this kernel and this file system support containers in user namespaces.

Mounts are made in a mount namespace that ends with this process. Files are made in a directory that is removed again.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from shim.oci_runtime import kernel
from shim.oci_runtime.layers import Covered, FileIds, Layers, mapped_clone
from shim.oci_runtime.order import UserNamespace
from shim.oci_runtime.user_namespace import mapping_of

_NAME = "pydockershim-self-test"
_MOUNT_POINTS = ("/merged", "/memory")
_OWNER = 40_000 << 16
"""Host id of root in the test's namespace: a kubelet gives out ranges up to the highest ids, above 2^31 as well."""


def run(store: str, directories: Sequence[str]) -> None:
    """Raise OSError with the reason if containers in user namespaces do not work.

    `store` is the directory of the image layers. `directories` have files that every container mounts.
    """
    place = f"{store}/{_NAME}"
    _remove(place)
    try:
        for name in ("", "/lower", "/upper", "/work", *_MOUNT_POINTS):
            os.mkdir(f"{place}{name}", 0o755)
        _create(f"{place}/lower/theirs")
        _try(place, directories)
    finally:
        for name in _MOUNT_POINTS:
            with suppress(OSError):  # not mounted, because an earlier step failed
                kernel.unmount(f"{place}{name}")
        _remove(place)


def _try(place: str, directories: Sequence[str]) -> None:
    # Without SPARE_ID, because mapping the host's root takes a capability that the server's unit has dropped
    # (CAP_SETFCAP).
    mapping = mapping_of(UserNamespace(uid=_OWNER, uids=1 << 16, gid=_OWNER, gids=1 << 16, pause=""), spare=False)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    layers = Layers(directory=place, options=b"lowerdir=lower,upperdir=upper,workdir=work", lower=())
    with Covered(layers, mapped_clone(layers, mapping)), FileIds(_OWNER, _OWNER):
        kernel.mount("overlay", "merged", kind="overlay", data=layers.options)
        merged = os.open("merged", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.close(os.open("ours", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=merged))
        seen = os.stat("theirs", dir_fd=merged).st_uid
    kept = os.stat(f"{place}/upper/ours").st_uid
    if (seen, kept) != (_OWNER, 0):
        raise OSError(f"an overlay of id-mapped layers shows owner {seen} for 0, and keeps {kept} for {_OWNER}")
    kernel.mount("tmpfs", f"{place}/memory", kind="tmpfs")
    for directory in (f"{place}/memory", *directories):
        opened = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        try:
            kernel.map_ids(kernel.clone_tree(opened), mapping, private=True)
        except OSError as error:
            raise OSError(error.errno, f"{directory}: {error.strerror}") from error


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _remove(place: str) -> None:
    """Remove the directories of a test."""
    for directory, names, files in os.walk(place, topdown=False):
        for name in files:
            os.unlink(f"{directory}/{name}")
        for name in names:
            os.rmdir(f"{directory}/{name}")
    if os.path.isdir(place):
        os.rmdir(place)
