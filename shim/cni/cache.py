"""The CNI result cache, in the format of the CNI reference library, which other tools read.

Each attachment has a file `<cache>/results/<network>-<container id>-<interface>`. It is written before ADD, written
again with the result, and removed after a successful DEL. The server itself relies on its checkpoint, and on the cache
only if the checkpoint is lost. Entries of this server name their owner in a key that other tools skip; only such
entries are cleaned up without a pod.
"""

import itertools
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shim.base.atomic_files import failing_as, read_regular
from shim.cni.conf import ConfError, parse_network
from shim.cni.plugin import JsonObject
from shim.domain.errors import ShimError, reason_of

KIND = "cniCacheV1"
FILE_LIMIT = 4 << 20
"""Most bytes of a file, which holds a configuration in base64 and a result."""
MAX_ORPHANS = 1000
"""Most attachments without a pod that a round cleans up; later rounds clean up the rest."""

_NAME = re.compile(r".+-([0-9a-f]{64})-[^-]+\Z")
"""File name of an attachment of a Docker container; the group is the container id."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The server and the pod of an attachment."""

    docker: str
    """Setting `docker_endpoint` of the server, whose pods are on that Engine."""
    sandbox: str
    """Name of the pod sandbox, which is the key of its lock."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an ADD. The DEL must get the same parameters."""

    conflist: JsonObject
    """`NetworkConfig.conflist`."""
    container_id: str
    """Id of the pod sandbox."""
    netns: str
    """Path of the pinned network namespace; may be empty for a DEL."""
    ifname: str
    """The interface in the pod."""
    args: list[tuple[str, str]] = []
    """CNI_ARGS in order."""
    capabilities: dict[str, Any] = {}
    """Capability arguments by name; each plugin gets the arguments it declares."""
    result: JsonObject | None = None
    """Final result of the ADD, as printed by the last plugin."""
    owner: Owner | None = None
    """None for attachments of other runtimes."""

    @property
    def network(self) -> str:
        """Return the name of the network."""
        return str(self.conflist["name"])


class _Entry(msgspec.Struct, rename="camel", omit_defaults=True):
    """The content of a file."""

    kind: str
    container_id: str
    config: bytes  # base64 in JSON, as in the reference library
    if_name: str
    network_name: str
    netns: str = ""
    cni_args: list[tuple[str, str]] | None = None
    capability_args: dict[str, Any] | None = None
    result: JsonObject | None = None
    pydockershim: Owner | None = None


def write_cached(cache_dir: Path, attachment: Attachment, *, result: JsonObject | None) -> None:
    """Record a finished ADD with its result, or an ADD that is about to begin without a result.

    Raise ShimError or ResourceExhausted if the file cannot be written.
    """
    entry = _Entry(
        kind=KIND,
        container_id=attachment.container_id,
        config=msgspec.json.encode(attachment.conflist),
        if_name=attachment.ifname,
        network_name=attachment.network,
        netns=attachment.netns,
        cni_args=attachment.args or None,
        capability_args=attachment.capabilities or None,
        result=result,
        pydockershim=attachment.owner,
    )
    path = _path(cache_dir, attachment)
    with failing_as(f"write cni result cache {path}"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, msgspec.json.encode(entry))


def remove_cached(cache_dir: Path, attachment: Attachment) -> None:
    """Remove the entry of an attachment, if it exists. Raise ShimError."""
    path = _path(cache_dir, attachment)
    with failing_as(f"remove cni result cache {path}"):
        path.unlink(missing_ok=True)


def cached_result(cache_dir: Path, attachment: Attachment) -> JsonObject | None:
    """Return the result of an ADD, if the cache has it. After a crash the checkpoint may lack it."""
    entry = _read(_path(cache_dir, attachment))
    return entry.result if entry else None


def cached_attachments(cache_dir: Path, *, container_id: str) -> list[Attachment]:
    """Return all attachments of a pod, including attachments of other runtimes that use the reference library."""
    found = [_attachment(entry) for entry in _entries(cache_dir, container_id)]
    return [attachment for attachment in found if attachment is not None]


def own_attachments(cache_dir: Path, *, docker: str, excluding: Collection[str]) -> list[Attachment]:
    """Return attachments that servers of this Docker endpoint own, except for the containers `excluding`.

    Return at most MAX_ORPHANS; a later call finds more once these are gone. Raise ShimError if the cache cannot be
    listed.
    """
    paths = (path for path in _files(cache_dir) if (match := _NAME.match(path.name)) and match[1] not in excluding)
    return list(itertools.islice((own for path in paths if (own := _own(path, docker=docker))), MAX_ORPHANS))


def attached_to(cache_dir: Path, *, network: str) -> set[tuple[str, str]]:
    """Return container id and interface of each attachment to a network, of any runtime.

    Raise ShimError if the cache cannot be listed.
    """
    paths = [path for path in _files(cache_dir) if path.name.startswith(f"{network}-")]
    entries = [entry for path in paths if (entry := _read(path)) is not None]
    return {(entry.container_id, entry.if_name) for entry in entries if entry.network_name == network}


def _own(path: Path, *, docker: str) -> Attachment | None:
    entry = _read(path)
    if entry is None or entry.pydockershim is None or entry.pydockershim.docker != docker:
        return None
    # A copied or renamed file is not the entry of its name.
    is_original = path.name == f"{entry.network_name}-{entry.container_id}-{entry.if_name}"
    return _attachment(entry) if is_original else None


def _files(cache_dir: Path) -> list[Path]:
    try:
        return sorted((cache_dir / "results").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ShimError(f"list cni result cache {cache_dir}: {reason_of(error)}") from error


def _entries(cache_dir: Path, container_id: str) -> Iterator[_Entry]:
    for path in sorted((cache_dir / "results").glob(f"*-{container_id}-*")):
        entry = _read(path)
        if entry is not None and entry.container_id == container_id:
            yield entry


def _attachment(entry: _Entry) -> Attachment | None:
    try:
        conflist = parse_network(entry.config, file="cached.json").conflist
    except ConfError:
        return None
    return Attachment(
        conflist=conflist,
        container_id=entry.container_id,
        netns=entry.netns,
        ifname=entry.if_name,
        args=entry.cni_args or [],
        capabilities=entry.capability_args or {},
        result=entry.result,
        owner=entry.pydockershim,
    )


def _path(cache_dir: Path, attachment: Attachment) -> Path:
    return cache_dir / "results" / f"{attachment.network}-{attachment.container_id}-{attachment.ifname}"


def _read(path: Path) -> _Entry | None:
    # Like the reference library, treat an unreadable entry as absent: the cache only adds to other knowledge.
    try:
        entry = msgspec.json.decode(read_regular(path, most=FILE_LIMIT), type=_Entry)
    except (OSError, ValueError, RecursionError):
        return None
    return entry if entry.kind == KIND else None


def _replace(path: Path, data: bytes) -> None:
    """Write a file atomically.

    `atomic_files.write_atomically` does not fit. It syncs, which costs time and is needless: after a power failure the
    server relies on the checkpoint. It also puts the temporary file into `results`, where other tools take every file
    for an attachment.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent.parent, prefix=".result-")  # 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
