"""A wall clock of the server and its log process alone, which can jump.

The wall clock of Linux belongs to the whole machine: a time namespace holds offsets of CLOCK_MONOTONIC and
CLOCK_BOOTTIME alone, which are set before its first process and never change (time_namespaces(7)). So a library is
preloaded (clock.c), which adds to the real time what a file says. Go programs do not ask libc for the time: dockerd,
containerd and the plugins go on with the machine's, so the server meets more than a real jump, where all see the same.
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
    """The difference between the server's wall clock and the machine's; `environ` is for the server."""

    def __init__(self, home: Path, *, compiler: str = "gcc") -> None:
        """Make the library below `home`; without a compiler the clock cannot jump, and `environ` is empty."""
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
        """Whether there is a library."""
        return bool(self.environ)

    @contextmanager
    def jumped(self, seconds: int) -> Iterator[None]:
        """Have the clock off by so much while the block runs: it jumps at its begin, and back at its end."""
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, seconds: int) -> None:
        # In place: the file is mapped.
        descriptor = os.open(self._offset, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("q", seconds), 0)
        finally:
            os.close(descriptor)
