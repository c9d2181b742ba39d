"""A network namespace in the role of a machine or a pod."""

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
    """A network namespace."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables of commands there."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """Prefix of a command that runs it there, as the same process."""
        return "nsenter", f"--net={self.path}"

    def run(self, command: str) -> str:
        """Run a command in the namespace and return its output."""
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
        """Call a function from a thread in the namespace; its sockets and children stay there."""
        return in_netns(self.path, action)

    def set(self, setting: str, value: int) -> None:
        """Set a kernel setting below net, such as `ipv4/ip_forward`."""
        self.call(lambda: Path("/proc/sys/net", setting).write_text(str(value)))


@contextmanager
def new_netns(path: Path, *, environ: Mapping[str, str] | None = None) -> Iterator[Netns]:
    """Create a network namespace with only a loopback interface that is down, pinned at `path` during the block."""
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    try:
        yield Netns(path, environ or {})
    finally:
        unmount_all(path)
        path.unlink()
