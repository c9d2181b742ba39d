"""The checkpoints of this node: a file per sandbox, and a copy in memory.

The copy is updated after the file. So readers never wait for the disk, and `get` returns only written content. An
untrusted file is moved to a subdirectory and reported. The checkpoint of its pod is rebuilt if possible
(`shim.sandbox.rebuild`).
"""

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from shim.base import atomic_files
from shim.base.locks import KeyedLocks
from shim.checkpoint.envelope import Untrusted, parsed, seal, unseal
from shim.checkpoint.model import SandboxCheckpoint
from shim.domain.errors import InvalidArgument, ShimError, reason_of

SUFFIX = ".json"
CORRUPT = "corrupt"
"""Subdirectory of untrusted files, which are kept for people."""
FILE_LIMIT = 8 << 20
"""Maximum bytes of a file: 1 MiB each of CNI configuration and result, 512 KiB of labels and annotations, and the
rest."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_json = msgspec.json.Encoder(order="sorted")
_checkpoint = msgspec.json.Decoder(SandboxCheckpoint)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt:
    """A file found at the start that contains no checkpoint this server can trust."""

    sandbox_id: str
    """From the name of the file."""
    path: Path
    """Where the file is now."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CheckpointStore:
    """All checkpoints, in a directory. Thread-safe; for a single process.

    Writes for a sandbox are serialized; writes for different sandboxes wait for the disk concurrently.
    """

    def __init__(self, directory: Path) -> None:
        """Load `directory`, created if missing. Raise ShimError only if it cannot be created or listed."""
        self._directory = directory
        self._writing = KeyedLocks()
        self._lock = threading.Lock()
        self._known: dict[str, SandboxCheckpoint] = {}
        self._corrupt: list[Corrupt] = []
        atomic_files.ensure_private_directory(directory)
        atomic_files.remove_temporaries(directory)
        with atomic_files.failing_as(f"list the checkpoints in {directory}"):
            paths = sorted(directory.glob(f"[!.]*{SUFFIX}"))
        for path in paths:
            self._load(path)

    def get(self, sandbox_id: str) -> SandboxCheckpoint | None:
        """Return the checkpoint of a sandbox by its full id."""
        with self._lock:
            return self._known.get(sandbox_id)

    def all(self) -> list[SandboxCheckpoint]:
        """Return all checkpoints, unordered."""
        with self._lock:
            return list(self._known.values())

    def corrupt(self) -> list[Corrupt]:
        """Return the files that were set aside when this store was loaded."""
        return list(self._corrupt)

    def put(self, checkpoint: SandboxCheckpoint) -> None:
        """Write the checkpoint of a sandbox, replacing the previous; on an error the previous stays.

        The first checkpoint of a sandbox survives a power loss. Later checkpoints may not, and the file may then have
        its previous content: no pod survives a power loss, and the first checkpoint holds all that is needed to clean
        up after it. Raise ResourceExhausted if the disk is full, InvalidArgument for content that JSON cannot
        represent.
        """
        with self._writing.hold(checkpoint.sandbox_id):
            self._write(checkpoint, sync="content" if self.get(checkpoint.sandbox_id) else "name")
            self._keep(checkpoint)

    def note(self, checkpoint: SandboxCheckpoint) -> None:
        """Keep `checkpoint` even if it cannot be written, and without waiting for the disk.

        Use it when a pod is stopped, because a full disk must not keep pods from being stopped. Changes that a power
        loss destroys are rebuilt from the CNI cache.
        """
        with self._writing.hold(checkpoint.sandbox_id):
            try:
                self._write(checkpoint, sync="nothing")
            except ShimError as error:
                log.warning("failed to write checkpoint", sandbox=checkpoint.sandbox_id, error=error)
            self._keep(checkpoint)

    def _write(self, checkpoint: SandboxCheckpoint, *, sync: atomic_files.Sync) -> None:
        path, content = self._path(checkpoint.sandbox_id), encode(checkpoint)
        # The state directory may have been cleared externally, but new pods must run.
        atomic_files.ensure_private_directory(self._directory)
        atomic_files.write_atomically(path, content, sync=sync)

    def _keep(self, checkpoint: SandboxCheckpoint) -> None:
        with self._lock:
            self._known[checkpoint.sandbox_id] = checkpoint

    def delete(self, sandbox_id: str) -> None:
        """Delete the checkpoint of a sandbox, if any.

        The file may reappear after a power loss. Its pod is then listed without a container, and removed again.
        """
        path = self._path(sandbox_id)
        with self._writing.hold(sandbox_id):
            atomic_files.remove_file(path)
            with self._lock:
                self._known.pop(sandbox_id, None)

    def _path(self, sandbox_id: str) -> Path:
        if not _ID.match(sandbox_id):
            raise InvalidArgument(f"sandbox id {sandbox_id[:140]!r} cannot name a checkpoint file")
        return self._directory / f"{sandbox_id}{SUFFIX}"

    def _load(self, path: Path) -> None:
        sandbox_id = path.name.removesuffix(SUFFIX)
        try:
            checkpoint = decode(atomic_files.read_regular(path, most=FILE_LIMIT), sandbox_id=sandbox_id)
        except (OSError, Untrusted) as error:
            self._set_aside(path, reason=str(error) if isinstance(error, Untrusted) else reason_of(error))
        else:
            self._known[sandbox_id] = checkpoint

    def _set_aside(self, path: Path, *, reason: str) -> None:
        try:
            kept = _moved_to_corrupt(path)
        except OSError as error:
            reason = f"{reason}; and it could not be set aside: {reason_of(error)}"
            kept = path
        found = Corrupt(sandbox_id=path.name.removesuffix(SUFFIX), path=kept, reason=reason)
        self._corrupt.append(found)
        log.error(
            "unusable checkpoint set aside",
            sandbox=found.sandbox_id,
            file=str(path),
            kept=str(kept),
            reason=reason,
        )


def encode(checkpoint: SandboxCheckpoint) -> bytes:
    """Return the content of a checkpoint's file. Raise InvalidArgument for content that JSON cannot represent."""
    try:
        data = _json.encode(checkpoint)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidArgument(f"write the checkpoint of sandbox {checkpoint.sandbox_id}: {error}") from error
    content = seal(data)
    if len(content) > FILE_LIMIT:
        raise InvalidArgument(
            f"write the checkpoint of sandbox {checkpoint.sandbox_id}: {len(content)} bytes, the limit is {FILE_LIMIT}"
        )
    return content


def decode(content: bytes, *, sandbox_id: str) -> SandboxCheckpoint:
    """Parse the content of a sandbox's checkpoint file. Raise Untrusted with the reason."""
    checkpoint = parsed(_checkpoint, unseal(content))
    if checkpoint.sandbox_id != sandbox_id:
        raise Untrusted(f"it is the checkpoint of sandbox {checkpoint.sandbox_id!r}")
    return checkpoint


def _moved_to_corrupt(path: Path) -> Path:
    """Move a file to the subdirectory CORRUPT, without replacing another; return its new path. Raise OSError."""
    corrupt = path.parent / CORRUPT
    corrupt.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while os.path.lexists(target := corrupt / f"{path.name}.corrupt-{number}"):
        number += 1
    path.rename(target)
    for directory in (corrupt, path.parent):
        atomic_files.sync_directory(directory)
    return target
