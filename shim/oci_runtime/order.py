"""The order of a container: the changes that the OCI runtime makes in its config.json. A file for each container.

The server writes it between Docker's create and start. A file is one line, `VERSION UID GID CREATE EXEC CHECKSUM`,
which the shell script reads as well, and JSON after it. UID and GID are the host's ids of the container's root, 0
without a user namespace. CREATE and EXEC are 1 where this program has something to do at that verb, else 0.
"""

import json
import os
import re
import stat
import zlib
from typing import Any, NamedTuple

VERSION = 1
FILE_LIMIT = 1 << 20
"""Most bytes of an order."""
_ID = re.compile(r"[a-z0-9]{1,128}\Z")
_HEADER = re.compile(rb"(\d{1,9}) \d{1,10} \d{1,10} [01] [01] (\d{1,10})\Z")

Json = dict[str, Any]


class OrderError(Exception):
    """An order that is missing, damaged or newer than this program."""


class UserNamespace(NamedTuple):
    """The user namespace of a pod: a range of uids and a range of gids, both from 0 in the container."""

    uid: int
    """The host's id of uid 0."""
    uids: int
    """How many uids follow each other."""
    gid: int
    gids: int
    pause: str
    """Docker's id of the running container whose namespace is joined; empty for the container that makes it."""


class Order(NamedTuple):
    """The changes for a container."""

    container: str
    """Docker's id."""
    user_namespace: UserNamespace | None = None
    """None for a container that has the node's."""
    docker_root: str = ""
    """Docker's data directory. Mounts from there (`/etc/hosts`, volumes of the image) get the pod's ids."""
    mapped: tuple[str, ...] = ()
    """Container paths of the other mounts that get the pod's ids. All the rest keeps the host's."""
    kept: tuple[str, ...] = ()
    """Container paths of mounts that keep the host's ids, also those from Docker's data directory."""
    adjustment: Json = {}  # noqa: RUF012 - nobody changes it
    """Changes of config.json that NRI plugins have asked for, by kind (`shim.oci_runtime.adjust`)."""
    process: Json = {}  # noqa: RUF012 - as above
    """Changes of the processes of exec."""


def encode(order: Order) -> bytes:
    """Return the content of an order's file."""
    namespace = order.user_namespace
    plain = {**order._asdict(), "user_namespace": namespace and namespace._asdict()}
    body = json.dumps(plain).encode()
    ids = (namespace.uid, namespace.gid) if namespace else (0, 0)
    has_create = namespace is not None or bool(order.adjustment)
    start = b"%d %d %d %d %d" % (VERSION, *ids, has_create, bool(order.process))
    return b"%s %d\n%s" % (start, _checksum(start, body), body)


def decode(content: bytes, *, container: str) -> Order:
    """Read the content of an order's file. Raise OrderError with the reason why it is none of this container."""
    header, _, body = content.partition(b"\n")
    found = _HEADER.match(header)
    if not found:
        raise OrderError("it does not begin with the line of an order")
    version = int(found[1])
    if version != VERSION:
        raise OrderError(f"it has version {version}, and this program reads version {VERSION}")
    if int(found[2]) != _checksum(header.rpartition(b" ")[0], body):
        raise OrderError("its checksum is another one")
    plain: dict[str, Any] = json.loads(body)
    order = Order(
        container=plain["container"],
        user_namespace=UserNamespace(**plain["user_namespace"]) if plain["user_namespace"] else None,
        docker_root=plain["docker_root"],
        mapped=tuple(plain["mapped"]),
        kept=tuple(plain["kept"]),
        adjustment=dict(plain["adjustment"]),
        process=dict(plain["process"]),
    )
    if order.container != container:
        raise OrderError(f"it is of container {order.container!r}")
    return order


def read(directory: str, container: str) -> Order:
    """Read the order of a container. Raise OrderError with its path.

    Only a file that root alone can have written counts, in a directory that root alone can change.
    """
    path = f"{directory}/{container}"
    if not _ID.match(container):
        raise OrderError(f"{container[:140]!r} is not the id of a container")
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
        raise OrderError(f"container {container} has no order {path}: the CRI server has to create it again") from error
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
        raise OrderError(f"{what} is not a file")


def _checksum(start: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(start))
