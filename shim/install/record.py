"""Record of what an installation changed on a node, so that it can be undone and nothing else is."""

import hashlib
from pathlib import Path

import msgspec

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, reason_of

PLACE = Path("/etc/pydockershim/installed.json")
FOR_PURGE = Path("/etc/pydockershim/purge")
"""Directory of what is left to undo, for packaging/scripts/purged.sh, which has no program to read a record with."""
_BYTES = 1 << 20


class DockerChange(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed in Docker's daemon.json."""

    before: str | None
    """The whole text; None where there was no file."""
    digest: str
    """Of the file that was written."""
    added: dict[str, object]
    """Keys and the values they were given."""


class Record(msgspec.Struct, kw_only=True):
    """Everything that was made, by its path on the node."""

    files: dict[str, str] = {}
    """Digest of the content that was written."""
    links: dict[str, str] = {}
    """Target of the link."""
    directories: list[str] = []
    """Those that were missing, outermost first."""
    docker: DockerChange | None = None


DAEMON_JSON_BEFORE = "daemon.json"
"""Name below FOR_PURGE of Docker's file as it was; missing where there was none."""


def files_for_purge(record: Record, *, daemon_json: Path) -> dict[str, str]:
    """Return names below FOR_PURGE and their text.

    `files` has a line for each file in the form of sha256sum(1), `directories` those that were made, innermost first.
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
    """Return what a record says of a content."""
    return hashlib.sha256(content).hexdigest()


def read_record(path: Path) -> Record:
    """Return the record at `path`, an empty one where there is none. Raise InvalidArgument where it is damaged."""
    try:
        return msgspec.json.decode(atomic_files.read_regular(path, most=_BYTES), type=Record)
    except FileNotFoundError:
        return Record()
    except OSError as error:
        raise InvalidArgument(f"read {path}: {reason_of(error)}") from error
    except msgspec.MsgspecError as error:
        raise InvalidArgument(
            f"{path} is damaged: {error}; remove it, and what it recorded is taken for somebody else's"
        ) from error


def encode_record(record: Record) -> bytes:
    """Return the content of the record's file."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
