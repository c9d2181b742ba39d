"""Pins: files that keep a pod's network namespace alive, whatever happens to the pause container.

CNI DEL needs the namespace of the ADD. A pinned namespace still exists when the pause container has crashed, was
removed by hand, or is being stopped. As with `ip netns`, a pin is a file in /run/netns, and the namespace is
bind-mounted on it. The directory is a shared mount, so that plugins and agents in other mount namespaces see the same
pins, and none of them keeps a pin mounted after `unpin`.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shim.base.atomic_files import failing_as
from shim.domain.errors import FailedPrecondition
from shim.netns.syscalls import bind_mount, share_mount, unmount

_OWN = Path("/proc/self/ns/net")


class ProcessEnded(FailedPrecondition):
    """The process whose namespace was to be pinned has ended; another process may have its pid."""


def ensure_pinned(path: Path, *, pid: int, confirmed: Callable[[], bool] = lambda: True) -> None:
    """Pin the network namespace of process `pid` on the file `path`. Idempotent.

    `confirmed` is called once the namespace is open, and returns whether `pid` still is the intended process. Raise
    ProcessEnded if it returns False, or if the process has ended. Raise FailedPrecondition if the process is in the
    server's own namespace (a pod with the host network, or a reused pid), or if `path` pins another namespace.
    """
    what = f"pin the network namespace of process {pid} on {path}"
    with failing_as(what), _open_namespace(pid, what=what) as namespace:
        if not confirmed():
            raise ProcessEnded(f"{what}: another process has this pid by now")
        if os.path.samestat(os.fstat(namespace), _OWN.stat()):
            raise FailedPrecondition(f"{what}: it is the namespace this server runs in")
        _ensure_shared_directory(path.parent)
        if not is_pinned(path):
            _ensure_mount_point(path)
            # Mount the open descriptor: another process may have the pid by now.
            bind_mount(f"/proc/self/fd/{namespace}", path)
        if not os.path.samestat(os.fstat(namespace), path.stat()):
            raise FailedPrecondition(f"{what}: another namespace is pinned there")


def is_pinned(path: Path) -> bool:
    """Return whether a namespace is mounted on `path`. A symbolic link to a mounted namespace does not count."""
    with failing_as(f"check for a network namespace on {path}"):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        # A kernel has one nsfs for all namespaces.
        return found.st_dev == _OWN.stat().st_dev


def unpin(path: Path) -> None:
    """Unmount the namespace and remove the file. Either may be missing."""
    with failing_as(f"unpin the network namespace {path}"):
        # Mounts stack: two concurrent pins on one path leave two mounts.
        while is_pinned(path):
            try:
                unmount(path)
            except OSError:
                if is_pinned(path):
                    raise
        path.unlink(missing_ok=True)


def remove_empty_directory(directory: Path) -> None:
    """Undo the creation of a directory for pins: unmount it from itself and remove it, unless it has entries."""
    with failing_as(f"remove the directory {directory}"):
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if any(directory.iterdir()):
                return
            # If the directory is on another file system than its parent, somebody else has mounted it.
            if directory.stat().st_dev == directory.parent.stat().st_dev and _make_shared(directory):
                unmount(directory)
        finally:
            os.close(descriptor)
        with suppress(OSError):  # the directory is in use, or still mounted by somebody else
            directory.rmdir()


@contextmanager
def _open_namespace(pid: int, *, what: str) -> Iterator[int]:
    if pid <= 0:
        raise ProcessEnded(f"{what}: the process is not running")
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessEnded(f"{what}: the process has ended") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ensure_shared_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        pass
    else:
        directory.chmod(0o755)
    if _make_shared(directory):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # `ip netns add` takes the same lock for this step. Without it the directory would be mounted on itself twice.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _make_shared(directory):
            bind_mount(directory, directory)
            share_mount(directory)
    finally:
        os.close(descriptor)


def _make_shared(directory: Path) -> bool:
    """Make the mount on `directory` shared; return False if nothing is mounted on it."""
    try:
        share_mount(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _ensure_mount_point(path: Path) -> None:
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(path, flags, 0))
