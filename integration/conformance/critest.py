"""Runs upstream's critest, and reads its report."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.conformance import ginkgo
from integration.conformance.ginkgo import Spec
from integration.conformance.results import Case, case
from integration.node.commands import NodeError, allowed, tail

_LIMIT_SECONDS = 3600
OURS_TO_SKIP = {
    "public image with digest should be pulled and removed": "asks for an image of a public registry by its digest",
}
"""The only cases that need the internet, with the reason."""

HOSTS_TO_SKIP = dict.fromkeys(
    (
        "runtime should support starting container with volume [Conformance]",
        "runtime should support starting container with volume when host path is a symlink [Conformance]",
    ),
    "its volume is a directory that the node's root alone may read",
)
"""Cases that cannot pass in a user namespace, with the reason."""

_ITS_OWN_TO_SKIP = {"benchmark about": "a benchmark, which critest runs with -benchmark alone"}
"""Cases that critest skips without giving a reason."""

_SUDO = """\
#!/bin/sh
exec "$@"
"""
"""Stands for sudo, with which critest loads AppArmor profiles: the machine's user is root, and may lack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Critest:
    """The program, and the server that it tests."""

    program: Path
    socket: Path
    nri: Path
    """The server's socket for NRI plugins."""
    skipped: Mapping[str, str]
    """Reasons by parts of the names of cases that are not run."""

    def run(self, home: Path, *, focus: Sequence[str], say: Callable[[str], None]) -> tuple[Case, ...]:
        """Run the cases that one of the regular expressions matches, or all without any; return all cases.

        Raises NodeError with the end of its output if it leaves no report.
        """
        options = [
            *(f"-ginkgo.skip={re.escape(name)}" for name in self.skipped),
            *map("-ginkgo.focus={}".format, focus),
        ]
        return cases_of(self._report(home, options, say), self.skipped)

    def names(self, home: Path) -> list[str]:
        """Return the names of all cases without running any."""
        return [each.name for each in cases_of(self._report(home, ["-ginkgo.dry-run"], lambda _line: None))]

    def _report(self, home: Path, options: Sequence[str], say: Callable[[str], None]) -> bytes:
        home.mkdir(parents=True)
        report, log = home / "report.json", home / "critest.log"
        endpoint = f"unix://{self.socket}"
        command = [
            *(str(self.program), f"-runtime-endpoint={endpoint}", f"-image-endpoint={endpoint}", "-config=/dev/null"),
            *("-ginkgo.no-color", "-ginkgo.v", f"-ginkgo.json-report={report}", f"-ginkgo.timeout={_LIMIT_SECONDS}s"),
            f"-test.timeout={_LIMIT_SECONDS + 60}s",
            *_nri(self.program, self.nri),
            *options,
        ]
        environ = {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}{_directory_of_sudo(home)}"}
        ginkgo.follow(command, log=log, say=say, seconds=_LIMIT_SECONDS + 120, env=environ)
        if not report.exists():
            raise NodeError(f"run critest: no report\n{tail(log.read_text())}")
        return report.read_bytes()


def _directory_of_sudo(home: Path) -> Path:
    directory = home / "bin"
    directory.mkdir()
    sudo = directory / "sudo"
    sudo.write_text(_SUDO)
    sudo.chmod(0o755)
    return directory


def _nri(program: Path, socket: Path) -> list[str]:
    """Return the option for the socket of NRI plugins; releases before 1.36 have none."""
    shown = subprocess.run([program, "-help"], capture_output=True, text=True, check=False, timeout=allowed(60))
    return [f"-nri-socket={socket}"] if "-nri-socket" in shown.stdout + shown.stderr else []


def cases_of(report: bytes, skipped: Mapping[str, str] = OURS_TO_SKIP) -> tuple[Case, ...]:
    """Return the cases of ginkgo's JSON report, sorted by name.

    A setup or teardown step counts as a case only if it failed.
    """
    specs = ginkgo.cases_in(ginkgo.read_report(report, program="critest"))
    return tuple(sorted((_case(spec, skipped) for spec in specs), key=lambda each: each.name))


def _case(spec: Spec, skipped: Mapping[str, str]) -> Case:
    return case(spec.name, spec.outcome, spec.seconds, _reason(spec, skipped) if spec.outcome != "passed" else "")


def _reason(spec: Spec, skipped: Mapping[str, str]) -> str:
    for part, reason in {**skipped, **_ITS_OWN_TO_SKIP}.items():
        if part in spec.name:
            return reason
    return spec.message or f"{spec.state} without a reason"
