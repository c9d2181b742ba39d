"""The record of an installation's changes, so that they can be undone."""

import hashlib
from pathlib import Path

import msgspec

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, reason_of

PLACE = Path("/etc/pydockershim/installed.json")
FOR_PURGE = Path("/etc/pydockershim/purge")
"""Directory of files for packaging/scripts/purged.sh, which has no program to read the record with."""
_BYTES = 1 << 20


class DockerChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of Docker's daemon.json."""

    before: str | None
    """The original text; None if there was no file."""
    digest: str
    """Of the file as written."""
    added: dict[str, object]
    """The added keys and their values."""


class Record(msgspec.Struct, kw_only=True):
    """All created files, by their paths on the node."""

    files: dict[str, str] = {}
    """Digest of the written content."""
    links: dict[str, str] = {}
    """Target of the link."""
    directories: list[str] = []
    """Created directories, outermost first."""
    docker: DockerChange | None = None


DAEMON_JSON_BEFORE = "daemon.json"
"""Name below FOR_PURGE of Docker's original file; absent if there was none."""


def files_for_purge(record: Record, *, daemon_json: Path) -> dict[str, str]:
    """Return the files for FOR_PURGE: text by name.

    `files` has a line in the form of sha256sum(1) for each file, `directories` lists the created directories, innermost
    first.
    """
    sums = dict(record.files)
    texts = {}
    if record.docker is not None:
        sums[str(daemon_json)] = record.docker.digest
        if record.docker.before is not None:
            texts[DAEMON_JSON_BEFORE] = record.docker.before
    texts["files"] = "".join(f"{of}  {path}\n" for path, of in sums.items())
    texts["directories"] = "".join(f"{path}\n" for path in reversed(record.directories))
    return texts


def digest(content: bytes) -> str:
    """Return the digest that a record holds of a content."""
    return hashlib.sha256(content).hexdigest()


def read_record(path: Path) -> Record:
    """Return the record at `path`, empty if there is none. Raise InvalidArgument if it is damaged."""
    try:
        return msgspec.json.decode(atomic_files.read_regular(path, most=_BYTES), type=Record)
    except FileNotFoundError:
        return Record()
    except OSError as error:
        raise InvalidArgument(f"read {path}: {reason_of(error)}") from error
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"{path} is damaged: {error}; if you remove it, the files it recorded count as somebody else's"
        ) from error


def encode_record(record: Record) -> bytes:
    """Return the content of the record's file."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
