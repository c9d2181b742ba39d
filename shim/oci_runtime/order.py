"""Orders: files with the changes that the OCI runtime makes to a container's config.json.

The server writes the order between Docker's create and start. Its first line is `VERSION UID GID CREATE EXEC CHECKSUM`,
which the calling shell script reads too; JSON follows. UID and GID are the host ids of the container's root, 0 without
a user namespace. CREATE and EXEC are 1 if this program has work at that verb, else 0. CREATE is 2 for a container that
continues from a checkpoint, whose `start` the script skips.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

import os
import stat
import zlib
from types import SimpleNamespace

from shim.oci_runtime import json_text

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
FILE_LIMIT = 1 << 20
"""Maximum bytes of an order."""
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_ID_LENGTHS = range(1, 129)
_RESTORE = 2
_MOST_DIGITS = (9, 10, 10, 1, 1, 10)
"""Maximum digits of each number in the first line."""


Json = dict[str, "Any"]


class OrderError(Exception):
    """The order is missing, damaged, or newer than this program."""


class UserNamespace(SimpleNamespace):
    """The user namespace of a pod: a range of uids and a range of gids, both starting at 0 in the container."""

    def __init__(self, *, uid: int, uids: int, gid: int, gids: int, pause: str) -> None:
        self.uid = uid
        """Host id of uid 0."""
        self.uids = uids
        """Number of consecutive uids."""
        self.gid = gid
        self.gids = gids
        self.pause = pause
        """Docker's id of the running container whose namespace to join; empty for the container that creates it."""


class Restore(SimpleNamespace):
    """The checkpoint from which a container continues."""

    def __init__(self, *, directory: str, path: str, highest_pid: int = 0) -> None:
        self.directory = directory
        """Directory of criu's images and the changed files; used by this container only."""
        self.path = path
        """Search path for criu and for programs that criu runs."""
        self.highest_pid = highest_pid
        """The highest id of a process in any container of the pod's checkpoint."""


class Order(SimpleNamespace):
    """The changes for a container."""

    def __init__(
        self,
        container: str,
        user_namespace: UserNamespace | None = None,
        docker_root: str = "",
        mapped: tuple[str, ...] = (),
        kept: tuple[str, ...] = (),
        *,
        adjustment: Json | None = None,
        process: Json | None = None,
        restore: Restore | None = None,
    ) -> None:
        self.container = container
        """Docker's id."""
        self.user_namespace = user_namespace
        """None for a container in the node's user namespace."""
        self.docker_root = docker_root
        """Docker's data directory. Mounts from there (`/etc/hosts`, volumes of the image) get the pod's ids."""
        self.mapped = mapped
        """Container paths of further mounts that get the pod's ids. All other mounts keep the host's ids."""
        self.kept = kept
        """Container paths of mounts that keep the host's ids, even from Docker's data directory."""
        self.adjustment: Json = adjustment or {}
        """NRI plugins' changes of config.json, by kind (`shim.oci_runtime.adjust`)."""
        self.process: Json = process or {}
        """NRI plugins' changes of exec processes."""
        self.restore = restore
        """None for a container that starts its command."""


def encode(order: Order) -> bytes:
    """Return the content of an order's file."""
    namespace = order.user_namespace
    restore = order.restore and vars(order.restore)
    body = json_text.write({**vars(order), "user_namespace": namespace and vars(namespace), "restore": restore})
    ids = (namespace.uid, namespace.gid) if namespace else (0, 0)
    create = _RESTORE if restore else int(namespace is not None or bool(order.adjustment))
    start = b"%d %d %d %d %d" % (VERSION, *ids, create, bool(order.process))
    return b"%s %d\n%s" % (start, _checksum(start, body), body)


def decode(content: bytes, *, container: str) -> Order:
    """Parse the content of an order's file. Raise OrderError if it is not a valid order of this container."""
    header, _, body = content.partition(b"\n")
    words = header.split(b" ")
    if not _are_numbers(words):
        raise OrderError("it does not begin with the line of an order")
    version = int(words[0])
    if version != VERSION:
        raise OrderError(f"it has version {version}, and this program reads version {VERSION}")
    if int(words[-1]) != _checksum(header.rpartition(b" ")[0], body):
        raise OrderError("its checksum does not match")
    plain: Json = json_text.read(body)
    order = Order(
        container=plain["container"],
        user_namespace=UserNamespace(**plain["user_namespace"]) if plain["user_namespace"] else None,
        docker_root=plain["docker_root"],
        mapped=tuple(plain["mapped"]),
        kept=tuple(plain["kept"]),
        adjustment=dict(plain["adjustment"]),
        process=dict(plain["process"]),
        restore=Restore(**plain["restore"]) if plain.get("restore") else None,
    )
    if order.container != container:
        raise OrderError(f"it is of container {order.container!r}")
    return order


def _are_numbers(words: list[bytes]) -> bool:
    """Return whether the first line has the right form."""
    return (
        len(words) == len(_MOST_DIGITS)
        and all(word.isdigit() and len(word) <= most for word, most in zip(words, _MOST_DIGITS, strict=True))
        and words[3] in (b"0", b"1", b"%d" % _RESTORE)
        and words[4] in (b"0", b"1")
    )


def read(directory: str, container: str) -> Order:
    """Read the order of a container. Raise OrderError with its path.

    The file and its directory must be writable by root alone.
    """
    path = f"{directory}/{container}"
    if len(container) not in _ID_LENGTHS or not _ID_CHARACTERS.issuperset(container):
        raise OrderError(f"{container[:140]!r} is not a container id")
    try:
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_private(os.fstat(at), what=directory)
            file = os.open(container, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        finally:
            os.close(at)
        with open(file, "rb") as opened:
            _check_private(os.fstat(file), what=path)
            content = opened.read(FILE_LIMIT + 1)
    except FileNotFoundError as error:
        raise OrderError(f"container {container} has no order {path}: the CRI server must create it again") from error
    except OSError as error:
        raise OrderError(f"read {path}: {error.strerror}") from error
    if len(content) > FILE_LIMIT:
        raise OrderError(f"{path} has more than {FILE_LIMIT} bytes")
    try:
        return decode(content, container=container)
    except (OrderError, ValueError, KeyError, TypeError) as error:
        raise OrderError(f"{path}: {error}") from error


def _check_private(found: os.stat_result, *, what: str) -> None:
    if found.st_uid != 0 or found.st_mode & 0o077:
        raise OrderError(f"{what} must belong to root, with mode 0600 or 0700")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OrderError(f"{what} is not a regular file or directory")


def _checksum(start: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(start))
