"""Checks devices on the host early: Docker checks them only at start, and accepts a FIFO as a device.

A path may hang on a dead volume, so `shim.spec.host_calls` calls this in the helper process. For this reason the module
imports little.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shim.domain.errors import FailedPrecondition, reason_of

MAX_ENTRIES = 4096
"""Maximum entries of a directory of devices, including subdirectories. Docker walks all of them at every start."""


def inspect_device(host_path: str, *, field: str) -> str:
    """Return the path of a device, or of a directory of devices, with links resolved.

    Raise FailedPrecondition, with the name of the field, for any other path.
    """
    source = Path(os.path.realpath(host_path))
    try:
        _check(source, field=f"{field}.host_path {host_path}")
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {host_path}: {reason_of(error)}") from error
    return str(source)


def _check(source: Path, *, field: str) -> None:
    mode = source.stat().st_mode
    if _is_device(mode):
        return
    if not stat.S_ISDIR(mode):
        raise FailedPrecondition(f"{field} is neither a device nor a directory of devices")
    found = False
    for number, entry in enumerate(_entries_below(str(source))):
        if number == MAX_ENTRIES:
            raise FailedPrecondition(f"{field} holds more than {MAX_ENTRIES} files; name the devices")
        found = found or _is_device(entry.stat(follow_symlinks=False).st_mode)
    if not found:
        raise FailedPrecondition(f"{field} is a directory without a device")


def _entries_below(directory: str) -> Iterator[os.DirEntry[str]]:
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
