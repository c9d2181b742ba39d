"""The results of runs, and their JSON format."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

State = Literal["passed", "failed", "expected", "skipped"]
"""`expected` is a failure that is expected, with its reason."""

KEPT = Path(__file__).with_name("results")
"""Directory of the files that docs/compatibility.md is generated from."""


SUITE_OF_TESTS = "tests"

UNIT_TESTS = "unit"
"""Prefix of the names of files with counts of unit tests (`integration.pythons.outcomes`) instead of runs."""


NOT_REACHED = "the time of the run did not suffice"
"""Reason of skipped cases that a run with a time limit has left out."""


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A case of a run; `reason` says why it was skipped or expected to fail, how it failed, or what was counted."""

    name: str
    state: State
    seconds: float
    reason: str = ""


IMPOSSIBLE_HERE = {
    "unable to apply caps: operation not permitted": "the machine lacks a capability, and Docker 20.10 asks for all of "
    "them in privileged containers"
}
"""Texts of failures that the machine causes, and the reason with which such a case counts as skipped."""


def case(name: str, state: State, seconds: float, reason: str) -> Case:
    """Return a case; a failure caused by the machine counts as skipped."""
    for part, why in IMPOSSIBLE_HERE.items():
        if state == "failed" and part in reason:
            return Case(name, "skipped", seconds, why)
    return Case(name, state, seconds, reason)


class Machine(msgspec.Struct, frozen=True):
    """The properties of a machine that results may depend on."""

    cgroup: str
    """Version of cgroups: v1 or v2."""
    driver: str
    """The cgroup driver: cgroupfs or systemd."""
    python: str
    """Minor version of the server's Python."""
    architecture: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A suite on an engine."""

    suite: str
    """critest, user-namespaces (critest with such a namespace for each pod), kubelet (the scenarios), churn (pods that
    crash), node-e2e (Kubernetes' own suite of a node), or tests (this project's integration tests)."""
    group: str = ""
    """The part of the suite node-e2e."""
    version: str
    """Version of critest or of the kubelet; for this project's tests the server's version."""
    gates: str = ""
    """Feature gates that differ from the kubelet's defaults, as `A=true,B=false`."""
    engine: str
    """One of `integration.node.engines.ENGINES`."""
    docker: str
    """Version of the engine."""
    date: str
    """Day in UTC, in the format of ISO 8601."""
    commit: str = ""
    """Commit of the server's repository; several, separated by commas, of a run in parts; empty if unknown."""
    machine: Machine
    binaries: dict[str, str]
    """Versions of the programs, as they print them."""
    note: str = ""
    """Remark about the programs, such as their origin."""
    cases: tuple[Case, ...]

    def count(self, state: State) -> int:
        """Return the number of cases in this state."""
        return Counter(case.state for case in self.cases)[state]

    @property
    def seconds(self) -> float:
        """Sum of the durations of the cases."""
        return sum(case.seconds for case in self.cases)


def write(path: Path, runs: Iterable[Run]) -> None:
    """Write runs as JSON, with one case a line so that diffs are readable."""
    path.write_text("[\n" + ",\n".join(_text(run) for run in runs) + "\n]\n")


def read(path: Path) -> tuple[Run, ...]:
    """Read the runs of a file. Raises msgspec.DecodeError for invalid content."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[Run, ...])


def kept(directory: Path = KEPT) -> tuple[Run, ...]:
    """Return all runs in the files of a directory."""
    return tuple(run for path in files(directory) for run in read(path))


def files(directory: Path = KEPT) -> list[Path]:
    """Return the files of a directory that hold runs."""
    return sorted(path for path in directory.glob("*.json") if not path.name.startswith(f"{UNIT_TESTS}_"))


def file_name(run: Run) -> str:
    """Return the name of the file of a run; a newer run of the same combination replaces it."""
    machine = run.machine
    parts = (run.suite, run.group, run.version, run.gates.replace("=", "-").replace(",", "-"), run.engine)
    where = (f"cgroup-{machine.cgroup}-{machine.driver}", f"python-{machine.python}", machine.architecture)
    return "_".join(part for part in (*parts, *where) if part) + ".json"


def by_reason(runs: Sequence[Run], state: State) -> dict[str, dict[str, list[Run]]]:
    """Group the cases in a state: for each reason, the runs of each case."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        for case in run.cases:
            if case.state == state:
                found.setdefault(case.reason, {}).setdefault(case.name, []).append(run)
    return found


def _text(run: Run) -> str:
    head = msgspec.json.encode(msgspec.structs.replace(run, cases=())).decode().removesuffix(',"cases":[]}')
    cases = ",\n".join("  " + msgspec.json.encode(case).decode() for case in run.cases)
    return f'{head},"cases":[\n{cases}\n]}}'
