"""Runs critest in parts: on a machine where all of it takes hours, a run resumes after its last finished part."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from integration.conformance.plan import Planned
from integration.conformance.results import NOT_REACHED, Case, Run, file_name, files, read, write
from integration.node.control_groups import CgroupDriver

_CASES_AT_ONCE = 6
"""Cases of a part: few, because a part that is cut off is lost, but starting critest takes time."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The place and the time of the parts of runs."""

    directory: Path
    """Has a file for each run, written after each part."""
    deadline: float
    """Value of time.monotonic() from which on no part begins."""

    @property
    def over(self) -> bool:
        """Whether no time is left for another part."""
        return time.monotonic() >= self.deadline

    def kept(self, planned: Planned, *, version: str, driver: CgroupDriver) -> Run | None:
        """Return a run of which no case is open, without an engine; None if there is none."""
        wanted = planned.suite, planned.engine, version, driver
        for path in files(self.directory):
            (run,) = read(path)
            if (run.suite, run.engine, run.version, run.machine.driver) == wanted:
                return None if any(map(is_open, run.cases)) else run
        return None


def is_open(case: Case) -> bool:
    """Return whether a resumed run runs the case: it has failed, or was not reached."""
    return case.state == "failed" or case.reason == NOT_REACHED


def run_in_parts(
    names: Sequence[str],
    *,
    parts: Parts,
    describe: Callable[[tuple[Case, ...]], Run],
    run: Callable[[Sequence[str]], tuple[Case, ...]],
) -> Run:
    """Run the named cases that are open, and return the whole run, with earlier parts.

    `describe` makes a run of cases. `run` runs the cases that a regular expression matches, and returns all cases.
    Cases that have failed before run last and alone.
    """
    path = parts.directory / file_name(describe(()))
    whole = _resumed(path, describe(tuple(Case(name, "skipped", 0, NOT_REACHED) for name in names)))
    for part in _parts([case for case in whole.cases if case.name in names and is_open(case)]):
        if parts.over:
            break
        done = run([f" {re.escape(name)}$" for name in part])
        # Cases that were not asked for are skipped, except for failures of set-up and teardown.
        whole = _with(whole, (case for case in done if case.name in part or case.state == "failed"))
        parts.directory.mkdir(parents=True, exist_ok=True)
        write(path, [whole])
    return whole


def _resumed(path: Path, fresh: Run) -> Run:
    if not path.exists():
        return fresh
    (before,) = read(path)
    commits = dict.fromkeys([*before.commit.split(", "), fresh.commit])
    return _with(msgspec.structs.replace(fresh, commit=", ".join(filter(None, commits))), before.cases)


def _with(run: Run, cases: Iterable[Case]) -> Run:
    merged: Mapping[str, Case] = {each.name: each for each in (*run.cases, *cases)}
    return msgspec.structs.replace(run, cases=tuple(sorted(merged.values(), key=lambda each: each.name)))


def _parts(cases: Sequence[Case]) -> Iterator[Sequence[str]]:
    unreached = [case.name for case in cases if case.state != "failed"]
    for first in range(0, len(unreached), _CASES_AT_ONCE):
        yield unreached[first : first + _CASES_AT_ONCE]
    yield from ([case.name] for case in cases if case.state == "failed")
