"""A wall clock that jumps for the server and its log process alone.

Linux has one wall clock for the whole machine: a time namespace offsets only CLOCK_MONOTONIC and CLOCK_BOOTTIME, and
its offsets are fixed before its first process starts (time_namespaces(7)). So clock.c is preloaded; it adds an offset,
read from a file, to the real time. Go programs do not ask libc for the time: dockerd, containerd and the plugins keep
the machine's clock. This is harder for the server than a real jump, which all programs see alike.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.node.commands import run

_COMPILE_SECONDS = 60.0


class Clock:
    """The offset of the server's wall clock; start the server with the variables in `environ`."""

    def __init__(self, home: Path, *, compiler: str = "gcc") -> None:
        """Build the library below `home`; without a compiler the clock cannot jump, and `environ` is empty."""
        self._offset = home / "clock-offset"
        self._offset.write_bytes(struct.pack("q", 0))
        self.environ: dict[str, str] = {}
        if shutil.which(compiler):
            library, source = home / "clock.so", Path(__file__).with_name("clock.c")
            run(
                [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source],
                timeout=_COMPILE_SECONDS,
            )
            self.environ = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._offset)}

    @property
    def can_jump(self) -> bool:
        """Whether the library was built."""
        return bool(self.environ)

    @contextmanager
    def jumped(self, seconds: int) -> Iterator[None]:
        """Shift the clock by `seconds` while the block runs; it jumps at the start and back at the end."""
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, seconds: int) -> None:
        # Written in place, because the library maps the file.
        descriptor = os.open(self._offset, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("q", seconds), 0)
        finally:
            os.close(descriptor)
