"""A look into the root file system of an image, alike on every image store and Engine version.

Docker has no call that reads the files of an image, but one that reads those of a container, also of one that has never
been started. So a container is made of the image, read, and removed. It is no pod's: its name begins unlike theirs, so
the view never hears of it.

    found = look_into(rt, image_id=record.id, look=lambda files: files.resolved("/usr/share"))
    passwd = look_into(rt, image_id=record.id, look=lambda files: files.read_file("/etc/passwd", limit=1 << 20))

A look costs a create and a remove, some tens of milliseconds: ask for all that is wanted in one, and remember what came
of it by image id, which stands for the content.
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
"""Bound on the create. A client that leaves does not end it: nobody would know what to remove."""
LOOK_SECONDS = 60.0
"""Bound on reading, once the container is there."""
REMOVE_SECONDS = 30.0

ARCHIVE_OVERHEAD = 256 << 10
"""Bytes of an archive of one file besides its content: headers, extended attributes, padding."""

_MALFORMED = (ValueError, OverflowError, RecursionError, EOFError, KeyError, IndexError)
"""What tarfile raises, besides its own errors, for headers that are malformed or nested."""

log = structlog.get_logger(__name__)


class RootFs:
    """The files of one image, for as long as `look_into` calls; paths are absolute, inside of the image."""

    def __init__(self, engine: Engine, *, container_id: str, image_id: ImageId) -> None:
        self._engine = engine
        self._container_id = container_id
        self.image_id = image_id

    def resolved(self, path: str) -> tuple[str, PathKind] | None:
        """Give a path without a link on it that leads to the same, and what is there; None when nothing is.

        Links are followed inside of the root, so it is never PathKind.LINK, and one that leads nowhere is nothing. `..`
        is taken lexically, as Docker does.
        """
        where, kind = "/", PathKind.DIRECTORY
        for part in posixpath.normpath(path).strip("/").split("/"):
            where, stat = self._followed(posixpath.join(where, part))
            if stat is None:
                return None
            kind = stat.kind
        return where, kind

    def read_file(self, path: str, *, limit: int) -> bytes | None:
        """Read a regular file of at most `limit` bytes; None when nothing is there.

        FailedPrecondition for anything else at the path, and for a larger file, of which nothing is read.
        """
        where, stat = self._followed(path)
        if stat is None:
            return None
        what = f"{path} of image {self.image_id}"
        if stat.kind is not PathKind.FILE:
            raise FailedPrecondition(f"{what} is {stat.kind.value}, not a regular file")
        if stat.size > limit:
            raise FailedPrecondition(f"{what} has {stat.size} bytes, at most {limit} are read")
        with self._engine.archive(self._container_id, where) as pieces:
            return file_from_tar(pieces, size=stat.size, what=what)

    def _followed(self, path: str) -> tuple[str, PathStat | None]:
        where = "/" + posixpath.normpath(path).lstrip("/")
        stat = self._engine.stat_path(self._container_id, where)
        if stat is None or stat.kind is not PathKind.LINK:
            return where, stat
        where, stat = stat.link_target, self._engine.stat_path(self._container_id, stat.link_target)
        if stat is not None and stat.kind is PathKind.LINK:
            raise FailedPrecondition(f"{path} of image {self.image_id} is a link that cannot be followed")
        return where, stat


def look_into(rt: Runtime, *, image_id: ImageId, look: Callable[[RootFs], T]) -> T:
    """Give what `look` finds in an image. NotFound when the image is gone, else the Engine's failures and its own.

    It may be called twice: a `docker system prune` takes the container away as it takes any that does not run.
    """
    try:
        return _looked_into(rt, image_id=image_id, look=look)
    except NotFound:
        return _looked_into(rt, image_id=image_id, look=look)


def remove_leftovers(rt: Runtime) -> None:
    """Remove the containers of looks that an earlier server did not come to remove."""
    for container in rt.engine.list_containers():
        ours = labels.LOOK in (container.labels or {})
        named = any(name.startswith("/" + names.LOOK_PREFIX) for name in container.names or ())
        # Both, since a label may be the image's and a name anybody's. One that is younger is a look of this server.
        if ours and named and container.created < rt.started_at and _remove(rt, container.id):
            log.info("removed what a look into an image had left", container=container.id)


def file_from_tar(pieces: Iterable[bytes], *, size: int, what: str) -> bytes:
    """Take the one file of `size` bytes out of an archive. ShimError when there is anything else in it."""
    archive = bytearray()
    for piece in pieces:
        archive += piece
        if len(archive) > size + ARCHIVE_OVERHEAD:
            raise ShimError(f"{what}: docker sends more than the {size} bytes it told")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            reader = tar.extractfile(member) if member is not None and member.isreg() else None
            content = reader.read(size + 1) if reader is not None else b""
    except (tarfile.TarError, *_MALFORMED) as cause:
        raise ShimError(f"{what}: docker's archive cannot be read: {cause}") from cause
    if len(content) != size:
        raise ShimError(f"{what}: docker's archive does not hold the {size} bytes it told")
    return content


def _looked_into(rt: Runtime, *, image_id: ImageId, look: Callable[[RootFs], T]) -> T:
    deadline.current().check(f"look into image {image_id}")
    container_id = _created(rt, image_id=image_id)
    try:
        with deadline.bound(LOOK_SECONDS):
            return look(RootFs(rt.engine, container_id=container_id, image_id=image_id))
    finally:
        _remove(rt, container_id)


def _created(rt: Runtime, *, image_id: ImageId) -> str:
    name = names.look_name()
    try:
        with deadline.shielded(CREATE_SECONDS):
            return rt.engine.create_container(name=name, body=_body(image_id))
    except (Unavailable, DeadlineExceeded):
        # Docker may have made it all the same, or do so yet, and the name is all that is known of it.
        _remove_late(rt, _Leftover(rt.engine, name, made=False))
        raise


def _body(image_id: ImageId) -> JsonObject:
    """A container that is never started. What an image lacks, or has wrong, must not fail its create."""
    return {
        "Image": image_id,
        "Entrypoint": [],
        "Cmd": ["-"],
        # Docker makes this directory at create.
        "WorkingDir": "/",
        "Labels": {labels.LOOK: "rootfs"},
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
    }


def _remove(rt: Runtime, container_id: str) -> bool:
    """Remove a container that has been made, now or later; whether it is gone, or about to be."""
    try:
        with deadline.shielded(REMOVE_SECONDS):
            rt.engine.remove_container(container_id)
    except (NotFound, RemovalInProgress):
        return True
    except ShimError as error:
        log.warning("a temporary container cannot be removed now", container=container_id, error=error)
        _remove_late(rt, _Leftover(rt.engine, container_id, made=True))
        return False
    return True


def _remove_late(rt: Runtime, leftover: "_Leftover") -> None:
    """Remove it as soon as possible; what is left after `deferred_checks.LATE_SECONDS`, the next server removes."""
    what = f"the removal of container {leftover.container}, which was made to look into an image"
    rt.deferred_checks.watch(leftover.is_gone, what=what, seconds=deferred_checks.LATE_SECONDS)


class _Leftover:
    """A container that may be there and should not; `container` is its id, or its name when no id is known."""

    def __init__(self, engine: Engine, container: str, *, made: bool) -> None:
        self._engine = engine
        self.container = container
        self._made = made
        """Whether Docker has made it: if not, it may do so yet, and that it is not there says nothing."""

    def is_gone(self) -> bool:
        """Remove it if it is there; whether it is gone for good. The Engine's failures to remove it."""
        try:
            with deadline.bound(deferred_checks.LOOK_SECONDS):
                self._engine.remove_container(self.container)
        except NotFound:
            return self._made
        except RemovalInProgress:
            self._made = True
            return False
        log.info("removed late what a look into an image had left", container=self.container)
        return True
