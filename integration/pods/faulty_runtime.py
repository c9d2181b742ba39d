"""The server's OCI runtime with a fault at one of its steps; tests replace the program in Docker's script by it.

The first argument is a file with two words: the fault, `kill` or `full`, and the number of the step where it happens.
An empty file gets the name of each step. Steps are the calls that change something outside of the process, in order.
"""

import builtins
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULTS = ("kill", "full")
"""SIGKILL before the step, or ENOSPC in its place, as from a full file system or a limit of the kernel."""
_STEPS = {
    "kernel": ("mount", "unmount", "unshare", "set_namespace", "clone_tree", "attach", "map_ids", "open_inside"),
    "os": ("mkdir", "replace", "fchmod", "fchown", "chdir", "fork", "pipe", "execvp"),
}

sys.path.insert(0, str(Path(__file__).parents[2]))

from shim.oci_runtime import command, kernel  # noqa: E402 - without installed packages, like the program


class Fault:
    """Counts steps, and fails one of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        words = path.read_text().split()
        self._kind, self._at = (words[0], int(words[1])) if len(words) == 2 and words[0] in FAULTS else ("", 0)
        self._done = 0
        self._process = os.getpid()

    def step(self, name: str) -> None:
        """Count a step of this process before it is done; steps of child processes do not count."""
        if os.getpid() != self._process:
            return
        self._done += 1
        if not self._kind:
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND), "w") as file:
                file.write(f"{name}\n")
        elif self._done == self._at:
            if self._kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, f"{name}: {os.strerror(errno.ENOSPC)}")

    def before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, preceded by a step."""

        def counted(*arguments: Any, **options: Any) -> Any:
            self.step(name)
            return call(*arguments, **options)

        return counted


def main() -> None:
    """Run the program."""
    fault = Fault(Path(sys.argv[1]))
    for module, names in ((kernel, _STEPS["kernel"]), (os, _STEPS["os"])):
        for name in names:
            setattr(module, name, fault.before(name, getattr(module, name)))
    opened = builtins.open

    def opened_to_write(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "w" in mode:
            fault.step(f"write {Path(path).name}")
        return opened(path, mode, *arguments, **options)

    builtins.open = opened_to_write  # type: ignore[assignment] # `open` has overloads
    command.main(sys.argv[2:])


if __name__ == "__main__":
    main()
