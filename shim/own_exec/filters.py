"""The seccomp filters that runc makes of profiles. Most containers of a node have the same profile."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shim.base.loading_cache import LoadingCache
from shim.own_exec.container import Container, Unsuited

CAPACITY = 1 << 20
"""Bytes of filters that are kept; one has some 10 KiB."""
_FLAG_BYTES = 4
_LEAST_WEIGHT = 1024
_NOTIFY = b"SCMP_ACT_NOTIFY"


class Filter(NamedTuple):
    """A filter as the kernel takes it."""

    flags: int = 0
    """Of seccomp(2), SECCOMP_SET_MODE_FILTER."""
    instructions: bytes = b""
    """BPF; empty for no filter."""
    problem: str = ""
    """Why runc's filter is not known; empty if it is."""


Compile = Callable[[bytes, Path, Path], bytes]
"""Returns what `read_filter` prints, of a profile, the program runc and an empty directory."""


class Filters:
    """Filters by profile. Thread-safe."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_
        self._known: LoadingCache[tuple[bytes, Path], Filter] = LoadingCache(capacity=CAPACITY)

    def of(self, container: Container) -> Filter:
        """Return the filter of a container's processes. Raise Unsuited where it cannot be known."""
        if not container.seccomp:
            return Filter()
        if _NOTIFY in container.seccomp:
            raise Unsuited("seccomp", "its profile asks a listener")
        key = hashlib.sha256(container.seccomp).digest(), container.runc
        found = self._known.get_or_load(key, lambda: self._load(container), what="read a seccomp filter of runc")
        if found.problem:
            raise Unsuited("seccomp", found.problem)
        return found

    def _load(self, container: Container) -> tuple[Filter, int]:
        """Return the filter of a profile and its weight. What cannot be read is not tried again."""
        with tempfile.TemporaryDirectory(prefix="pydockershim-filter-") as directory:
            try:
                printed = self._compile(container.seccomp, container.runc, Path(directory))
            except Unsuited as unsuited:
                return Filter(problem=str(unsuited)), _LEAST_WEIGHT
        found = Filter(int.from_bytes(printed[:_FLAG_BYTES], "little"), printed[_FLAG_BYTES:])
        return found, len(printed)
