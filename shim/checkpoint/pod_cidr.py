"""The pod address ranges that the kubelet has sent by UpdateRuntimeConfig.

The kubelet sends them once, when the node gets its range, so they must survive a restart of the server.
"""

import threading
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument

FILE_LIMIT = 64 << 10
"""Maximum bytes of the file."""

log = structlog.get_logger(__name__)


class PodCidr:
    """The current ranges, kept in a small file. Thread-safe."""

    def __init__(self, path: Path, *, default: str) -> None:
        """Read `path`; without it `default` (the setting) applies until the kubelet sends ranges."""
        self._path = path
        self._lock = threading.Lock()
        self._ranges = _load(path) or parse_pod_cidr(default)

    @property
    def ranges(self) -> tuple[str, ...]:
        """Return ranges such as `10.244.1.0/24`, in the order sent; empty if unknown."""
        return self._ranges

    def update(self, text: str) -> None:
        """Store new comma-separated ranges. Raise InvalidArgument with the invalid range."""
        ranges = parse_pod_cidr(text)
        with self._lock:
            if ranges != self._ranges:
                atomic_files.write_atomically(self._path, ",".join(ranges).encode())
                self._ranges = ranges


def _load(path: Path) -> tuple[str, ...]:
    try:
        return parse_pod_cidr(atomic_files.read_regular(path, most=FILE_LIMIT).decode())
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, InvalidArgument) as error:
        # The kubelet sends the ranges again when it starts. Existing pods do not need them.
        log.error("ignored stored pod address ranges", file=str(path), error=error)
        return ()
