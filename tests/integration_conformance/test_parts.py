"""critest in parts that resume."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.conformance.parts import Parts, run_in_parts
from integration.conformance.plan import Planned
from integration.conformance.results import NOT_REACHED, Case, Machine, Run, State, read

_NAMES = [f"pod {number:02}" for number in range(8)]
_PLANNED = Planned("critest", "28")


def _described(cases: tuple[Case, ...], commit: str = "aaa") -> Run:
    return Run(
        suite="critest",
        version="1.36.0",
        engine="28",
        docker="28.5.2",
        date="2026-11-28",
        commit=commit,
        machine=Machine(cgroup="v2", driver="systemd", python="3.11", architecture="amd64"),
        binaries={},
        cases=cases,
    )


class _Program:
    """Stands for critest; it reports every case, and those that it was not asked for as skipped."""

    def __init__(self, failing: Sequence[str] = (), parts: int = 9, teardown: Sequence[Case] = ()) -> None:
        self.asked: list[list[str]] = []
        self._failing, self._parts, self._teardown = failing, parts, teardown

    def run(self, focus: Sequence[str]) -> tuple[Case, ...]:
        if len(self.asked) == self._parts:
            raise KeyboardInterrupt
        asked = [name for name in _NAMES if any(re.search(each, f"CRI validation {name}") for each in focus)]
        self.asked.append(asked)
        return (*(self._case(name, asked=name in asked) for name in _NAMES), *self._teardown)

    def _case(self, name: str, *, asked: bool) -> Case:
        state: State = "failed" if name in self._failing else "passed"
        return Case(name, state, 1.0) if asked else Case(name, "skipped", 0.0, "skipped without a reason")


def _parts(tmp_path: Path, seconds: float = 60) -> Parts:
    return Parts(tmp_path / "results", time.monotonic() + seconds)


def test_a_run_that_was_cut_off_resumes_after_its_last_finished_part(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=_Program(parts=1).run)
    (file,) = (tmp_path / "results").iterdir()
    (kept,) = read(file)
    assert [case.reason for case in kept.cases] == [""] * 6 + [NOT_REACHED] * 2

    again = _Program()
    whole = run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=again.run)

    assert again.asked == [_NAMES[6:]]
    assert whole.count("passed") == len(_NAMES)
    assert read(file) == (whole,)


def test_cases_that_have_failed_run_again_alone_after_the_others(tmp_path: Path) -> None:
    first = _Program(failing=["pod 02", "pod 04"], parts=1)
    with pytest.raises(KeyboardInterrupt):
        run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=first.run)

    again = _Program(failing=["pod 04"])
    whole = run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=again.run)

    assert again.asked == [["pod 06", "pod 07"], ["pod 02"], ["pod 04"]]
    assert [case.name for case in whole.cases if case.state == "failed"] == ["pod 04"]


def test_no_part_begins_after_the_time(tmp_path: Path) -> None:
    program = _Program()
    whole = run_in_parts(_NAMES, parts=_parts(tmp_path, 0), describe=_described, run=program.run)
    assert program.asked == []
    assert {case.reason for case in whole.cases} == {NOT_REACHED}


def test_a_failed_teardown_counts_although_it_is_no_named_case(tmp_path: Path) -> None:
    program = _Program(teardown=[Case("AfterSuite", "failed", 0.0, "left over")])
    whole = run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=program.run)
    assert [case.name for case in whole.cases if case.state == "failed"] == ["AfterSuite"]


def test_a_run_names_the_commits_of_all_its_parts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_in_parts(_NAMES, parts=_parts(tmp_path), describe=_described, run=_Program(parts=1).run)

    def describe(cases: tuple[Case, ...]) -> Run:
        return _described(cases, "bbb")

    whole = run_in_parts(_NAMES, parts=_parts(tmp_path), describe=describe, run=_Program().run)
    assert whole.commit == "aaa, bbb"


def test_a_whole_run_needs_no_engine_any_more(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    assert parts.kept(_PLANNED, version="1.36.0", driver="systemd") is None
    whole = run_in_parts(_NAMES, parts=parts, describe=_described, run=_Program().run)
    assert parts.kept(_PLANNED, version="1.36.0", driver="systemd") == whole
    assert parts.kept(_PLANNED, version="1.36.0", driver="cgroupfs") is None
    assert parts.kept(_PLANNED, version="1.36.1", driver="systemd") is None
    assert parts.kept(Planned("user-namespaces", "28"), version="1.36.0", driver="systemd") is None


def test_a_run_with_failures_needs_the_engine_again(tmp_path: Path) -> None:
    parts = _parts(tmp_path)
    run_in_parts(_NAMES, parts=parts, describe=_described, run=_Program(failing=["pod 02"]).run)
    assert parts.kept(_PLANNED, version="1.36.0", driver="systemd") is None
