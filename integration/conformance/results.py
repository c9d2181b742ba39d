"""What a run has found, and its form as JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

State = Literal["passed", "failed", "skipped"]

KEPT = Path(__file__).with_name("results")
"""The files that docs/compatibility.md is made from."""


SUITE_OF_TESTS = "tests"

UNIT_TESTS = "unit"
"""How the names of files begin that hold counts of unit tests (`integration.pythons.outcomes`), and no runs."""


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One case of a run; `reason` says why it was skipped, how it failed, or what was counted."""

    name: str
    state: State
    seconds: float
    reason: str = ""


IMPOSSIBLE_HERE = {
    "unable to apply caps: operation not permitted": "the machine lacks a capability, and Docker 20.10 asks for all of "
    "them in privileged containers"
}
"""What a failure says that comes from the machine, and the reason why such a case counts as skipped."""


def case(name: str, state: State, seconds: float, reason: str) -> Case:
    """Return a case; one that failed for what the machine lacks was skipped."""
    for part, why in IMPOSSIBLE_HERE.items():
        if state == "failed" and part in reason:
            return Case(name, "skipped", seconds, why)
    return Case(name, state, seconds, reason)


class Machine(msgspec.Struct, frozen=True):
    """What a run took place on, as far as results may depend on it."""

    cgroup: str
    """Version of the control groups: v1 or v2."""
    driver: str
    """Who makes control groups: cgroupfs or systemd."""
    python: str
    """Minor version of the interpreter that ran the server."""
    architecture: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One suite on one engine."""

    suite: str
    """critest, kubelet: the scenarios, churn: pods that crash, or tests: our own integration tests."""
    version: str
    """Of what asks the server: critest's, or the kubelet's; of our own tests the server's."""
    gates: str = ""
    """Feature gates that differ from the kubelet's defaults, as `A=true,B=false`."""
    engine: str
    """One of `integration.node.engines.ENGINES`."""
    docker: str
    """The engine's own version."""
    date: str
    """Day, in UTC, as in ISO 8601."""
    commit: str = ""
    """The server's, of its repository; empty where that is not known."""
    machine: Machine
    binaries: dict[str, str]
    """Versions of the programs, as they print them."""
    note: str = ""
    """What else there is to know of the programs, such as where they came from."""
    cases: tuple[Case, ...]

    def count(self, state: State) -> int:
        """Return how many cases ended so."""
        return Counter(case.state for case in self.cases)[state]

    @property
    def seconds(self) -> float:
        """How long its cases took together."""
        return sum(case.seconds for case in self.cases)


def write(path: Path, runs: Iterable[Run]) -> None:
    """Write runs as JSON, one case a line, so that a difference between two files can be read."""
    path.write_text("[\n" + ",\n".join(_text(run) for run in runs) + "\n]\n")


def read(path: Path) -> tuple[Run, ...]:
    """Read the runs of a file; msgspec.DecodeError names what is wrong with it."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[Run, ...])


def kept(directory: Path = KEPT) -> tuple[Run, ...]:
    """Return all runs of the files of a directory."""
    return tuple(run for path in files(directory) for run in read(path))


def files(directory: Path = KEPT) -> list[Path]:
    """Return the files of a directory that hold runs."""
    return sorted(path for path in directory.glob("*.json") if not path.name.startswith(f"{UNIT_TESTS}_"))


def file_name(run: Run) -> str:
    """Return the name of the file that keeps a run: a newer run of the same takes its place."""
    machine = run.machine
    parts = (run.suite, run.version, run.gates.replace("=", "-").replace(",", "-"), run.engine)
    where = (f"cgroup-{machine.cgroup}-{machine.driver}", f"python-{machine.python}", machine.architecture)
    return "_".join(part for part in (*parts, *where) if part) + ".json"


def skips(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """Group what was skipped: the runs for each case, for each reason."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        for case in run.cases:
            if case.state == "skipped":
                found.setdefault(case.reason, {}).setdefault(case.name, []).append(run)
    return found


def _text(run: Run) -> str:
    head = msgspec.json.encode(msgspec.structs.replace(run, cases=())).decode().removesuffix(',"cases":[]}')
    cases = ",\n".join("  " + msgspec.json.encode(case).decode() for case in run.cases)
    return f'{head},"cases":[\n{cases}\n]}}'
