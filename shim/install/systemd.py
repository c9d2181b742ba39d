"""systemd's part of an installation: enables, starts and stops units."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shim.base.spawn import Outcome, run_bounded
from shim.doctor.units import BOOTED, SERVICE, SOCKET
from shim.domain.errors import ShimError, reason_of
from shim.install.dockerd import Dockerd, dockerd_of_unit
from shim.install.node import Node

DOCKER = "docker.service"
OURS = (SOCKET, SERVICE)
"""In start order."""
CRI_DOCKERD = ("cri-docker.socket", "cri-docker.service")
"""The units that use the same socket."""

_SECONDS = 300.0
"""Longer than `TimeoutStopSec=` of the unit, which a restart may take."""


@dataclass(frozen=True, slots=True)
class Systemd:
    """systemctl for a node."""

    node: Node
    environ: Mapping[str, str]
    booted: Path = BOOTED

    @property
    def is_running(self) -> bool:
        """Return whether units can be started."""
        return self.node.is_this_machine and self.booted.is_dir()

    @property
    def is_there(self) -> bool:
        """Return whether units can be enabled."""
        return self._program() is not None

    def run(self, verb: str, *words: str) -> None:
        """Run a verb of systemctl. Raise ShimError with its message."""
        outcome = self._run(verb, *words)
        if outcome.returncode != 0:
            said = outcome.stderr.decode(errors="replace").strip() or f"exit status {outcome.returncode}"
            raise ShimError(f"systemctl {' '.join((verb, *words))}: {said}")

    def is_active(self, unit: str) -> bool:
        """Return whether a unit runs or listens."""
        return self._run("is-active", "--quiet", unit).returncode == 0

    def active_rivals(self) -> list[str]:
        """Return the active units of cri-dockerd, without aliases of ours."""
        return [unit for unit in CRI_DOCKERD if self.is_active(unit) and self._id(unit) not in OURS]

    def dockerd(self) -> Dockerd:
        """Return the dockerd of Docker's unit, with an empty command line if there is no unit."""
        shown = self._run("show", "--property=MainPID,ExecStart", DOCKER)
        return dockerd_of_unit(shown.stdout.decode(errors="replace"))

    def last_words(self, unit: str) -> str:
        """Return the last line that a unit's program wrote; empty if the journal has none."""
        program = shutil.which("journalctl", path=self.environ.get("PATH"))
        if program is None:
            return ""
        journal = run_bounded(
            Path(program),
            arguments=[f"_SYSTEMD_UNIT={unit}", "--lines=1", "--output=cat", "--quiet", "--no-pager"],
            environment={**self.environ, "LC_ALL": "C"},
            stdin=b"",
            timeout=_SECONDS,
            what="journalctl",
        )
        return journal.stdout.decode(errors="replace").strip()

    def _id(self, unit: str) -> str:
        shown = self._run("show", "--property=Id", "--value", unit)
        return shown.stdout.decode(errors="replace").strip()

    def _program(self) -> str | None:
        return shutil.which("systemctl", path=self.environ.get("PATH"))

    def _run(self, *words: str) -> Outcome:
        program = self._program()
        if program is None:
            raise ShimError("systemctl is not on the PATH")
        root = () if self.node.is_this_machine else (f"--root={self.node.root}",)
        try:
            return run_bounded(
                Path(program),
                arguments=[*root, "--no-pager", "--quiet", *words],
                environment={**self.environ, "LC_ALL": "C"},
                stdin=b"",
                timeout=_SECONDS,
                what=f"systemctl {words[0]}",
            )
        except OSError as error:
            raise ShimError(f"systemctl: {reason_of(error)}") from error
