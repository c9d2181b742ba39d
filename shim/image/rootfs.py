"""Reads files of an image, with every image store and Engine version.

Docker can only read files of a container, even if it was never started. So a container is created from the image, read,
and removed. It belongs to no pod: its name has a different prefix, so the view ignores it.

    found = inspect_rootfs(rt, image_id=record.id, read=lambda files: files.resolve("/usr/share"))
    passwd = inspect_rootfs(rt, image_id=record.id, read=lambda files: files.read_file("/etc/passwd", limit=1 << 20))

The create and the remove take some tens of milliseconds. So read everything at once, and cache the result by image id,
which identifies the content.
"""

import io
import posixpath
import tarfile
from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from shim.base import deadline, deferred_checks
from shim.domain import labels, names
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.answers import PathKind, PathStat
from shim.engine.errors import RemovalInProgress
from shim.engine.interface import Engine, JsonObject
from shim.runtime import Runtime

T = TypeVar("T")

CREATE_SECONDS = 120.0
"""Timeout of the create. It continues if the client leaves, because otherwise the id to remove would be unknown."""
READ_SECONDS = 60.0
"""Timeout of reading, after the create."""
REMOVE_SECONDS = 30.0

ARCHIVE_OVERHEAD = 256 << 10
"""Maximum bytes of a one-file archive in addition to the content: headers, extended attributes, padding."""

_MALFORMED = (ValueError, OverflowError, RecursionError, EOFError, KeyError, IndexError)
"""Exceptions of tarfile, in addition to TarError, for malformed or nested headers."""

log = structlog.get_logger(__name__)


class ImageFiles:
    """The files of an image, valid during `inspect_rootfs`; paths are absolute, inside the image."""

    def __init__(self, engine: Engine, *, container_id: str, image_id: ImageId) -> None:
        self._engine = engine
        self._container_id = container_id
        self.image_id = image_id

    def resolve(self, path: str) -> tuple[str, PathKind] | None:
        """Return the path with all links resolved, and the kind of the file; None if it does not exist.

        Links are followed inside the root, so the kind is never PathKind.LINK, and a dangling link counts as missing.
        As in Docker, `..` is resolved lexically.
        """
        where, kind = "/", PathKind.DIRECTORY
        for part in posixpath.normpath(path).strip("/").split("/"):
            where, stat = self._follow_link(posixpath.join(where, part))
            if stat is None:
                return None
            kind = stat.kind
        return where, kind

    def read_file(self, path: str, *, limit: int) -> bytes | None:
        """Read a regular file of at most `limit` bytes; None if it does not exist.

        Raise FailedPrecondition, before reading, if it is not a regular file or is larger.
        """
        where, stat = self._follow_link(path)
        if stat is None:
            return None
        what = f"{path} of image {self.image_id}"
        if stat.kind is not PathKind.FILE:
            raise FailedPrecondition(f"{what} is {stat.kind.value}, not a regular file")
        if stat.size > limit:
            raise FailedPrecondition(f"{what} has {stat.size} bytes, the limit is {limit}")
        with self._engine.archive(self._container_id, where) as pieces:
            return file_from_tar(pieces, size=stat.size, what=what)

    def _follow_link(self, path: str) -> tuple[str, PathStat | None]:
        where = "/" + posixpath.normpath(path).lstrip("/")
        stat = self._engine.stat_path(self._container_id, where)
        if stat is None or stat.kind is not PathKind.LINK:
            return where, stat
        where, stat = stat.link_target, self._engine.stat_path(self._container_id, stat.link_target)
        if stat is not None and stat.kind is PathKind.LINK:
            raise FailedPrecondition(f"{path} of image {self.image_id} is a link that cannot be followed")
        return where, stat


def inspect_rootfs(rt: Runtime, *, image_id: ImageId, read: Callable[[ImageFiles], T]) -> T:
    """Return the result of `read` on the files of an image.

    Raise NotFound if the image is gone, and the errors of the Engine and of `read`. `read` may be called twice, because
    a `docker system prune` removes all containers that do not run.
    """
    try:
        return _inspect_once(rt, image_id=image_id, read=read)
    except NotFound:
        return _inspect_once(rt, image_id=image_id, read=read)


def remove_leftovers(rt: Runtime) -> None:
    """Remove image-inspection containers of an earlier server."""
    for container in rt.engine.list_containers():
        ours = labels.INSPECTION in (container.labels or {})
        named = any(name.startswith("/" + names.INSPECTION_PREFIX) for name in container.names or ())
        # Label and name must match, because an image may have the label, and any container the name. A younger
        # container is this server's.
        if ours and named and container.created < rt.server.started_at and _remove(rt, container.id):
            log.info("removed leftover image-inspection container", container=container.id)


def file_from_tar(pieces: Iterable[bytes], *, size: int, what: str) -> bytes:
    """Extract the only file, of `size` bytes, from an archive.

    Raise ShimError if the archive contains anything else.
    """
    archive = bytearray()
    for piece in pieces:
        archive += piece
        if len(archive) > size + ARCHIVE_OVERHEAD:
            raise ShimError(f"{what}: Docker sends more than the {size} bytes it announced")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            reader = tar.extractfile(member) if member is not None and member.isreg() else None
            content = reader.read(size + 1) if reader is not None else b""
    except (tarfile.TarError, *_MALFORMED) as cause:
        raise ShimError(f"{what}: Docker's archive cannot be read: {cause}") from cause
    if len(content) != size:
        raise ShimError(f"{what}: Docker's archive does not contain the {size} bytes it announced")
    return content


def _inspect_once(rt: Runtime, *, image_id: ImageId, read: Callable[[ImageFiles], T]) -> T:
    deadline.current().check(f"read files of image {image_id}")
    container_id = _create(rt, image_id=image_id)
    try:
        with deadline.bound(READ_SECONDS):
            return read(ImageFiles(rt.engine, container_id=container_id, image_id=image_id))
    finally:
        _remove(rt, container_id)


def _create(rt: Runtime, *, image_id: ImageId) -> str:
    name = names.inspection_name()
    try:
        with deadline.shielded(CREATE_SECONDS):
            return rt.engine.create_container(name=name, body=_body(image_id))
    except (Unavailable, DeadlineExceeded):
        # Docker may have created the container, or may still create it, and only its name is known.
        _remove_late(rt, _Leftover(rt.engine, name, created=False))
        raise


def _body(image_id: ImageId) -> JsonObject:
    """Return the create body of a container that is never started, valid for every image."""
    return {
        "Image": image_id,
        "Entrypoint": [],
        "Cmd": ["-"],
        # Docker creates the working directory at create.
        "WorkingDir": "/",
        "Labels": {labels.INSPECTION: "rootfs"},
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
    }


def _remove(rt: Runtime, container_id: str) -> bool:
    """Remove a container now, or later if that fails. Return whether it is gone or being removed."""
    try:
        with deadline.shielded(REMOVE_SECONDS):
            rt.engine.remove_container(container_id)
    except (NotFound, RemovalInProgress):
        return True
    except ShimError as error:
        log.warning("cannot remove image-inspection container now", container=container_id, error=error)
        _remove_late(rt, _Leftover(rt.engine, container_id, created=True))
        return False
    return True


def _remove_late(rt: Runtime, leftover: "_Leftover") -> None:
    """Let deferred checks remove the container. After `deferred_checks.LATE_SECONDS` the next server removes it."""
    what = f"the removal of image-inspection container {leftover.container}"
    rt.deferred_checks.add(leftover.is_gone, what=what, seconds=deferred_checks.LATE_SECONDS)


class _Leftover:
    """A container to remove, which may not exist. `container` is its id, or its name if the id is unknown."""

    def __init__(self, engine: Engine, container: str, *, created: bool) -> None:
        self._engine = engine
        self.container = container
        self._created = created
        """Whether Docker has certainly created it. If not, Docker may create it later, even if it is missing now."""

    def is_gone(self) -> bool:
        """Remove the container if it exists. Return whether it is permanently gone; raise the Engine's errors."""
        try:
            with deadline.bound(deferred_checks.CHECK_SECONDS):
                self._engine.remove_container(self.container)
        except NotFound:
            return self._created
        except RemovalInProgress:
            self._created = True
            return False
        log.info("removed leftover image-inspection container", container=self.container)
        return True
