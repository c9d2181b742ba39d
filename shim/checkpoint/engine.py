"""Docker's last known version and cgroup driver, stored for clients that ask while Docker is unavailable.

A kubelet requests both when it starts, and exits if it gets no answer.
"""

import threading
from pathlib import Path

import msgspec
import structlog

from shim.base import atomic_files
from shim.checkpoint.envelope import Untrusted, parsed, seal, unseal
from shim.checkpoint.model import KnownEngine
from shim.domain.errors import ShimError, reason_of

FILE_LIMIT = 64 << 10
"""Maximum bytes of the file: a version and the name of a cgroup driver."""

_known = msgspec.json.Decoder(KnownEngine)

log = structlog.get_logger(__name__)


class EngineStore:
    """The file, and its content in memory. Thread-safe. See `shim.dockerd.facts.Kept`."""

    def __init__(self, path: Path) -> None:
        """Read `path`. A missing or untrusted file counts as empty, and is logged."""
        self._path = path
        self._lock = threading.Lock()
        self._content = _load(path)
        self._failed = False

    @property
    def server_version(self) -> str:
        """Return Docker's version at its last answer; empty before the first."""
        return "" if self._content is None else self._content.server_version

    @property
    def cgroup_driver(self) -> str:
        """Return Docker's cgroup driver at its last answer; empty before the first."""
        return "" if self._content is None else self._content.cgroup_driver

    def keep(self, *, server_version: str, cgroup_driver: str) -> None:
        """Keep a new answer. If it cannot be written, keep it in memory, and log the failure once."""
        known = KnownEngine(server_version=server_version, cgroup_driver=cgroup_driver)
        with self._lock:
            if known == self._content and not self._failed:
                return
            self._content = known
            self._write(known)

    def _write(self, known: KnownEngine) -> None:
        try:
            atomic_files.write_atomically(self._path, seal(msgspec.json.encode(known)), sync="content")
        except ShimError as error:
            if not self._failed:
                log.warning("failed to store engine facts", error=str(error))
            self._failed = True
        else:
            self._failed = False


def _load(path: Path) -> KnownEngine | None:
    try:
        return parsed(_known, unseal(atomic_files.read_regular(path, most=FILE_LIMIT)))
    except FileNotFoundError:
        log.info("no stored engine facts: version unknown until Docker answers", file=str(path))
    except OSError as error:
        log.warning("ignored stored engine facts", file=str(path), error=reason_of(error))
    except Untrusted as error:
        log.warning("ignored stored engine facts", file=str(path), error=str(error))
    return None
