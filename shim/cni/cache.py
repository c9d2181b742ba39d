"""The CNI result cache, in the format of the CNI reference library, which other tools read.

One file per attachment, `<cache>/results/<network>-<container id>-<interface>`, written before ADD, again with its
result, and removed after a successful DEL. The shim itself relies on its checkpoint; the cache stands in where that was
lost. Entries of this server name it, in a key that other tools skip: only those are cleaned up without a pod.
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
"""Most bytes of one file: a configuration, in base64, and a result."""
MAX_ORPHANS = 1000
"""Most attachments without a pod that are cleaned up in one round; the others follow in the next."""

_NAME = re.compile(r".+-([0-9a-f]{64})-[^-]+\Z")
"""File name of an attachment of a Docker container; the group is its id."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Which server made an attachment, and for what."""

    docker: str
    """Setting `docker_endpoint` of the server: its pods are on that Engine."""
    sandbox: str
    """Name of the pod sandbox, the key of its lock."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an ADD was, or will be, run with: the DEL must be given the same."""

    conflist: JsonObject
    """`NetworkConfig.conflist`."""
    container_id: str
    """Id of the pod sandbox."""
    netns: str
    """Path of the pinned network namespace; may be empty in a DEL."""
    ifname: str
    """The interface in the pod."""
    args: list[tuple[str, str]] = []
    """CNI_ARGS in order."""
    capabilities: dict[str, Any] = {}
    """Capability arguments by name; each plugin gets those it declares."""
    result: JsonObject | None = None
    """Final result of the ADD, as the last plugin printed it."""
    owner: Owner | None = None
    """None for attachments of other runtimes."""

    @property
    def network(self) -> str:
        """Return the name of the network."""
        return str(self.conflist["name"])


class _Entry(msgspec.Struct, rename="camel", omit_defaults=True):
    """One file of the cache."""

    kind: str
    container_id: str
    config: bytes  # base64 in JSON, there as here
    if_name: str
    network_name: str
    netns: str = ""
    cni_args: list[tuple[str, str]] | None = None
    capability_args: dict[str, Any] | None = None
    result: JsonObject | None = None
    pydockershim: Owner | None = None


def write_cached(cache_dir: Path, attachment: Attachment, *, result: JsonObject | None) -> None:
    """Record a finished ADD, or without result one that is about to begin.

    ShimError or ResourceExhausted when the disk does not take it.
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
    """Forget an attachment after its DEL; gone is fine. ShimError when it cannot be removed."""
    path = _path(cache_dir, attachment)
    with failing_as(f"remove cni result cache {path}"):
        path.unlink(missing_ok=True)


def cached_result(cache_dir: Path, attachment: Attachment) -> JsonObject | None:
    """Find the result of an ADD that only the cache has: a crash came before the checkpoint."""
    entry = _read(_path(cache_dir, attachment))
    return entry.result if entry else None


def cached_attachments(cache_dir: Path, *, container_id: str) -> list[Attachment]:
    """Find every attachment of a pod, also those made by other runtimes that use the reference library."""
    found = [_attachment(entry) for entry in _entries(cache_dir, container_id)]
    return [attachment for attachment in found if attachment is not None]


def own_attachments(cache_dir: Path, *, docker: str, beside: Collection[str]) -> list[Attachment]:
    """Find the attachments that servers of this Docker endpoint have made for containers other than `beside`.

    At most MAX_ORPHANS; the next call finds more once these are gone. ShimError when the cache cannot be listed.
    """
    paths = (path for path in _files(cache_dir) if (match := _NAME.match(path.name)) and match[1] not in beside)
    return list(itertools.islice((own for path in paths if (own := _own(path, docker=docker))), MAX_ORPHANS))


def attached_to(cache_dir: Path, *, network: str) -> set[tuple[str, str]]:
    """Find the container id and interface of each attachment to a network, of any runtime.

    ShimError when the cache cannot be listed.
    """
    paths = [path for path in _files(cache_dir) if path.name.startswith(f"{network}-")]
    entries = [entry for path in paths if (entry := _read(path)) is not None]
    return {(entry.container_id, entry.if_name) for entry in entries if entry.network_name == network}


def _own(path: Path, *, docker: str) -> Attachment | None:
    entry = _read(path)
    if entry is None or entry.pydockershim is None or entry.pydockershim.docker != docker:
        return None
    # One that was copied or renamed is not what it says.
    whole = path.name == f"{entry.network_name}-{entry.container_id}-{entry.if_name}"
    return _attachment(entry) if whole else None


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
    # Whatever is unreadable counts as absent, as in the reference library: the cache only ever adds to what is known.
    try:
        entry = msgspec.json.decode(read_regular(path, most=FILE_LIMIT), type=_Entry)
    except (OSError, ValueError, RecursionError):
        return None
    return entry if entry.kind == KIND else None


def _replace(path: Path, data: bytes) -> None:
    """Write at once or not at all.

    Not `disk.write_atomically`: after a power cut the checkpoint is what counts, so that no sync is worth its time, and
    the temporary file must lie beside `results`, where other tools take every file for an attachment.
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
