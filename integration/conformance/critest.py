"""Runs upstream's critest, and reads its report."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from integration.conformance.results import Case, State, case
from integration.node.commands import NodeError, allowed, tail

_LIMIT_SECONDS = 3600
_STATES: dict[str, State] = {"passed": "passed", "skipped": "skipped", "pending": "skipped"}
"""Every other state of ginkgo is a failure: failed, panicked, interrupted, aborted, timedout."""

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

_SUMMARY = re.compile(r"Will run (\d+) of (\d+) specs")
_DONE = re.compile(r"^(?:•|S) \[")
_FAILED = re.compile(r"^• \[(?:FAILED|PANICKED|TIMEDOUT)\]")


class _Failure(msgspec.Struct, frozen=True, rename="pascal"):
    message: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="pascal"):
    leaf_node_type: str
    leaf_node_text: str
    state: str
    container_hierarchy_texts: list[str] | None = None
    run_time: int = 0
    """In ns."""
    failure: _Failure | None = None


class _Report(msgspec.Struct, frozen=True, rename="pascal"):
    spec_reports: list[_Spec] | None = None


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
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,
            env={**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}{_directory_of_sudo(home)}"},
        ) as child:
            try:
                _follow(child, log, say)
            except BaseException:
                child.kill()
                raise
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


def _follow(child: subprocess.Popen[str], log: Path, say: Callable[[str], None]) -> None:
    """Copy the output to a file, and print progress."""
    assert child.stdout is not None
    total, done, failed = "?", 0, 0
    with log.open("w") as copy:
        for line in child.stdout:
            copy.write(line)
            if found := _SUMMARY.search(line):
                total = found[1]
            if _DONE.search(line):
                done += 1
                failed += bool(_FAILED.search(line))
                # Some of them count as skipped later: the report says that the machine cannot run them.
                say(f"{done} of {total} cases, {failed} did not pass")


def cases_of(report: bytes, skipped: Mapping[str, str] = OURS_TO_SKIP) -> tuple[Case, ...]:
    """Return the cases of ginkgo's JSON report, sorted by name.

    A setup or teardown step counts as a case only if it failed.
    """
    try:
        specs = [spec for part in msgspec.json.decode(report, type=list[_Report]) for spec in part.spec_reports or ()]
    except msgspec.DecodeError as cause:
        raise NodeError(f"read critest's report: {cause}") from cause
    return tuple(sorted(_cases(specs, skipped), key=lambda each: each.name))


def _cases(specs: list[_Spec], skipped: Mapping[str, str]) -> Iterator[Case]:
    for spec in specs:
        state = _STATES.get(spec.state, "failed")
        if spec.leaf_node_type != "It" and state != "failed":
            continue
        name = " ".join([*(spec.container_hierarchy_texts or ()), spec.leaf_node_text or spec.leaf_node_type])
        yield case(
            name, state, round(spec.run_time / 1e9, 3), _reason(spec, name, skipped) if state != "passed" else ""
        )


def _reason(spec: _Spec, name: str, skipped: Mapping[str, str]) -> str:
    for part, reason in {**skipped, **_ITS_OWN_TO_SKIP}.items():
        if part in name:
            return reason
    message = spec.failure.message if spec.failure else ""
    return message.strip() or f"{spec.state} without a reason"
