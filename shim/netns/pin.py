"""Keep the network namespace of a pod alive on a file, whatever becomes of its pause container.

CNI DEL needs the namespace of the ADD; a pinned one is still there when the pause container has crashed, was
removed by hand, or is being stopped at the same time. The conventions are those of `ip netns`: a file in
/run/netns with the namespace bind-mounted on it, in a directory that is a shared mount, so that plugins and
agents in mount namespaces of their own see the same pins, and hold none back when we unpin.
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
    """The process whose namespace was to be pinned has ended; its pid may be another's by now."""


def ensure_pinned(path: Path, *, pid: int, confirmed: Callable[[], bool] = lambda: True) -> None:
    """Pin the network namespace of process `pid` on the file `path`; done already is fine.

    `confirmed` returns, once the namespace is open, whether that still is the process that is meant. ProcessEnded if it
    is not, or has ended; FailedPrecondition if it lives in our own namespace (a pod of the host network, or a pid that
    was given to another process), or if `path` pins another namespace.
    """
    what = f"pin the network namespace of process {pid} on {path}"
    with failing_as(what), _open_namespace(pid, what=what) as namespace:
        if not confirmed():
            raise ProcessEnded(f"{what}: the process is another one by now")
        if os.path.samestat(os.fstat(namespace), _OWN.stat()):
            raise FailedPrecondition(f"{what}: it is the namespace this server runs in")
        _ensure_shared_directory(path.parent)
        if not is_pinned(path):
            _ensure_mount_point(path)
            # By descriptor: the pid may belong to another process by now.
            bind_mount(f"/proc/self/fd/{namespace}", path)
        if not os.path.samestat(os.fstat(namespace), path.stat()):
            raise FailedPrecondition(f"{what}: another namespace is pinned there")


def is_pinned(path: Path) -> bool:
    """Return whether a namespace is mounted on `path` itself; a symbolic link to one does not count."""
    with failing_as(f"check for a network namespace on {path}"):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        # One nsfs holds all namespaces of a kernel.
        return found.st_dev == _OWN.stat().st_dev


def unpin(path: Path) -> None:
    """Unmount the namespace and remove the file; also a file on which nothing is mounted, and none at all."""
    with failing_as(f"unpin the network namespace {path}"):
        # Mounts stack: two pins of one path at the same moment leave two.
        while is_pinned(path):
            try:
                unmount(path)
            except OSError:
                if is_pinned(path):
                    raise
        path.unlink(missing_ok=True)


def remove_empty_directory(directory: Path) -> None:
    """Take back a directory that pins have been in: unmount it from itself and remove it, unless it holds anything."""
    with failing_as(f"remove the directory {directory}"):
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if any(directory.iterdir()):
                return
            # Another file system than that around it was mounted by somebody else.
            if directory.stat().st_dev == directory.parent.stat().st_dev and _shared(directory):
                unmount(directory)
        finally:
            os.close(descriptor)
        with suppress(OSError):  # in use, or a mount of somebody else's
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
    if _shared(directory):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # `ip netns add` takes the same lock for the same step; without it the directory is mounted on itself
        # twice.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _shared(directory):
            bind_mount(directory, directory)
            share_mount(directory)
    finally:
        os.close(descriptor)


def _shared(directory: Path) -> bool:
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
