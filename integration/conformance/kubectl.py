"""Runs kubectl as a user of the cluster does."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a user's configuration, in a namespace."""

    program: Path
    kubeconfig: Path
    home: Path
    namespace: str = "default"

    def words(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        return [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *arguments]

    def try_to(self, *arguments: str, stdin: str = "", seconds: float = _SECONDS) -> Done:
        """Run kubectl and return its outcome, also after a failure."""
        done = subprocess.run(
            self.words(*arguments),
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd=self.home,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, stdin: str = "", seconds: float = _SECONDS) -> str:
        """Run kubectl and return its output; raise AssertionError if it fails."""
        done = self.try_to(*arguments, stdin=stdin, seconds=seconds)
        assert done.code == 0, f"kubectl {' '.join(arguments)}: exit status {done.code}\n{done.out}{done.err}"
        return done.out

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Create or change an object."""
        self("apply", "-f", "-", stdin=msgspec.json.encode(manifest).decode())
