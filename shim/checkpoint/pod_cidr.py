"""The pod address ranges the kubelet has sent by UpdateRuntimeConfig.

The kubelet sends them once, when the node gets its range; a restart of the shim alone must not lose them.
"""

import threading
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument

FILE_LIMIT = 64 << 10
"""Most bytes of the file."""

log = structlog.get_logger(__name__)


class PodCidr:
    """The ranges in force, kept in one small file. Thread-safe."""

    def __init__(self, path: Path, *, default: str) -> None:
        """Read `path`; `default` (the setting) holds until the kubelet has sent others."""
        self._path = path
        self._lock = threading.Lock()
        self._ranges = _load(path) or parse_pod_cidr(default)

    @property
    def ranges(self) -> tuple[str, ...]:
        """Return ranges such as `10.244.1.0/24`, in the order they were sent; empty when none are known."""
        return self._ranges

    def update(self, text: str) -> None:
        """Take and store new comma-separated ranges. Raise InvalidArgument, which names the one that is not a range."""
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
        # The kubelet sends the ranges again when it starts; the pods that are there are served all the same.
        log.error("ignored stored pod address ranges", file=str(path), error=error)
        return ()
