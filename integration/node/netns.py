"""A network namespace that stands for a machine or a pod."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from integration.node.mounts import unmount_all
from shim.netns.enter import in_netns

T = TypeVar("T")

_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Netns:
    """One network namespace."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of what runs there, beside our own."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that make it run there, as the same process."""
        return "nsenter", f"--net={self.path}"

    def run(self, command: str) -> str:
        """Run a command in it and return what it prints."""
        done = subprocess.run(
            [*self.prefix, *command.split()],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, **self.environ},
        )
        if done.returncode != 0:
            raise AssertionError(f"{command}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def call(self, action: Callable[[], T]) -> T:
        """Call from a thread in it; sockets and children made there stay there."""
        return in_netns(self.path, action)

    def set(self, setting: str, value: int) -> None:
        """Set a kernel setting below net, such as `ipv4/ip_forward`."""
        self.call(lambda: Path("/proc/sys/net", setting).write_text(str(value)))


@contextmanager
def new_netns(path: Path, *, environ: Mapping[str, str] | None = None) -> Iterator[Netns]:
    """Make a network namespace with only a loopback interface that is down, pinned on `path` while the block runs."""
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    try:
        yield Netns(path, environ or {})
    finally:
        unmount_all(path)
        path.unlink()
