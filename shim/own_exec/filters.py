"""Seccomp filters that runc compiles from profiles. They are cached, because most containers share a profile."""

import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from shim.base import deadline
from shim.base.loading_cache import LoadingCache
from shim.base.lru_cache import LruCache
from shim.domain.errors import ShimError
from shim.own_exec.container import Container, Unsuited

CAPACITY = 1 << 20
"""Maximum bytes of cached filters; a filter has about 10 KiB."""
_PROBLEMS = 100
PROBLEM_SECONDS = 60.0
"""Back-off after a filter could not be read. Each attempt makes runc create a container."""
_FLAG_BYTES = 4
_WHAT = "read a seccomp filter of runc"
_NOTIFY = b"SCMP_ACT_NOTIFY"


class Filter(NamedTuple):
    """A filter in the kernel's form."""

    flags: int = 0
    """The flags of SECCOMP_SET_MODE_FILTER, seccomp(2)."""
    instructions: bytes = b""
    """BPF instructions; empty for no filter."""


_Key: TypeAlias = tuple[bytes, Path]
"""Digest of a profile, and the path of runc."""
Compile = Callable[[bytes, Path, Path], bytes]
"""Takes a profile, the path of runc and an empty directory; returns the output of `read_filter`."""


class Filters:
    """Filters by profile. Thread-safe."""

    def __init__(self, compile_: Compile) -> None:
        self._compile = compile_
        self._known: LoadingCache[_Key, Filter] = LoadingCache(capacity=CAPACITY)
        self._problems: LruCache[_Key, tuple[str, float]] = LruCache(capacity=_PROBLEMS)
        """Why a filter is unknown, and the monotonic time of the next attempt."""

    def of(self, container: Container) -> Filter:
        """Return the filter of a container's processes. Raise Unsuited if it cannot be determined."""
        if not container.seccomp:
            return Filter()
        if _NOTIFY in container.seccomp:
            raise Unsuited("seccomp", "the profile notifies a listener")
        key = hashlib.sha256(container.seccomp).digest(), container.runc
        self._check_problem(key)
        try:
            return self._known.get_or_load(key, lambda: self._load(container), what=_WHAT)
        except Unsuited as unsuited:
            self._problems.put(key, (str(unsuited), time.monotonic() + PROBLEM_SECONDS), weight=1)
            raise

    def _check_problem(self, key: _Key) -> None:
        known = self._problems.get(key)
        if known is not None and time.monotonic() < known[1]:
            raise Unsuited("seccomp", known[0])

    def _load(self, container: Container) -> tuple[Filter, int]:
        outer = deadline.current()
        try:
            with tempfile.TemporaryDirectory(prefix="pydockershim-filter-") as directory:
                printed = self._compile(container.seccomp, container.runc, Path(directory))
        except (OSError, ShimError) as error:
            outer.check(_WHAT)
            raise Unsuited("seccomp", f"{_WHAT}: {error}") from error
        if len(printed) <= _FLAG_BYTES:
            raise Unsuited("seccomp", f"{_WHAT}: empty")
        found = Filter(int.from_bytes(printed[:_FLAG_BYTES], "little"), printed[_FLAG_BYTES:])
        return found, len(printed)
