"""Kubernetes' node suite: its report, its expected failures, its place on the page, and the stand-in for systemd."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from integration.conformance.binaries import NODE_E2E, Binaries, Program
from integration.conformance.node_e2e import units
from integration.conformance.node_e2e.cases import cases_of
from integration.conformance.node_e2e.expected import EXPECTED, Expected, judged, stale
from integration.conformance.node_e2e.groups import GROUPS, Group
from integration.conformance.page import page
from integration.conformance.plan import plan
from integration.conformance.report import summary
from integration.conformance.results import Case, Machine, Run, file_name
from integration.node.engines import ENGINES

TABLE = (
    Expected("resize .* guaranteed", "needs a capability"),
    Expected("huge pages", "an old kernel", engines=("20.10",)),
    Expected("kill 1", "a race of Docker", sometimes=True),
)
CASES = (
    Case("resize of a guaranteed pod", "failed", 2.5, "mismatch"),
    Case("huge pages", "failed", 1.0, "no pages"),
    Case("a pod runs", "passed", 1.0),
    Case("swap", "skipped", 0.0, "cgroup v2 only"),
)


def _report(*specs: Mapping[str, object], **suite: object) -> bytes:
    whole = [{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], **spec} for spec in specs]
    return msgspec.json.encode([{"SpecReports": whole, **suite}])


def _run(**fields: object) -> Run:
    values: dict[str, object] = {
        "suite": "node-e2e",
        "group": "conformance",
        "version": "1.36.2",
        "engine": "28",
        "docker": "28.5.2",
        "date": "2026-11-28",
        "machine": Machine(cgroup="v1", driver="cgroupfs", python="3.11", architecture="amd64"),
        "binaries": {"kubelet": "1.36.2"},
        "cases": judged(CASES, engine="28", table=TABLE),
    }
    return Run(**(values | fields))  # type: ignore[arg-type]


# --- the report -------------------------------------------------------------------------------------------


def test_specs_that_the_filters_left_out_are_no_cases() -> None:
    found = cases_of(
        _report(
            {"LeafNodeText": "run", "State": "passed", "RunTime": 2_000_000_000},
            {"LeafNodeText": "are filtered", "State": "skipped"},
            {"LeafNodeText": "wait", "State": "pending"},
            {"LeafNodeText": "swap", "State": "skipped", "Failure": {"Message": "no swap\n"}},
        )
    )
    assert found == (
        Case("[sig-node] Pods run", "passed", 2.0),
        Case("[sig-node] Pods swap", "skipped", 0.0, "no swap"),
    )


def test_every_other_state_is_a_failure_with_its_message() -> None:
    states = ("failed", "panicked", "timedout", "interrupted", "aborted")
    found = cases_of(
        _report(*({"LeafNodeText": state, "State": state, "Failure": {"Message": "no"}} for state in states))
    )
    assert {(case.state, case.reason) for case in found} == {("failed", "no")}
    assert len(found) == len(states)


def test_a_long_reason_of_a_skip_has_a_short_form() -> None:
    message = "Skipping cadvisor metrics test because PodAndContainerStatsFromCRI feature gate is enabled"
    (found,) = cases_of(_report({"LeafNodeText": "run", "State": "skipped", "Failure": {"Message": message}}))
    assert found.reason == "tests cAdvisor's metrics"


def test_a_long_message_is_cut() -> None:
    (found,) = cases_of(_report({"LeafNodeText": "run", "State": "failed", "Failure": {"Message": "x" * 5000}}))
    assert found.reason.endswith("x...")
    assert len(found.reason) < 1000


def test_a_failed_set_up_and_the_timeout_of_the_suite_are_failures() -> None:
    set_up = {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "failed"}
    found = cases_of(_report(set_up, SpecialSuiteFailureReasons=["Suite Timeout Elapsed"]))
    assert [(case.name, case.state) for case in found] == [
        ("[sig-node] Pods SynchronizedBeforeSuite", "failed"),
        ("the whole suite", "failed"),
    ]
    assert found[1].reason == "Suite Timeout Elapsed"


# --- expected failures ------------------------------------------------------------------------------------


def test_a_failure_that_is_expected_has_the_reason_of_its_entry() -> None:
    found = judged(CASES, engine="28", table=TABLE)
    assert found[0] == Case("resize of a guaranteed pod", "expected", 2.5, "needs a capability")
    assert found[1:] == CASES[1:]


def test_an_entry_counts_on_its_engines_only() -> None:
    assert judged(CASES, engine="20.10", table=TABLE)[1].state == "expected"
    assert judged(CASES, engine="28", table=TABLE)[1].state == "failed"


def test_an_entry_is_stale_when_its_case_passes() -> None:
    passed = (Case("resize of a guaranteed pod", "passed", 1.0), Case("huge pages", "passed", 1.0))
    (line,) = stale(_run(cases=passed), table=TABLE)
    assert "resize of a guaranteed pod passes on engine 28" in line
    assert "'resize .* guaranteed'" in line
    assert len(stale(_run(cases=passed, engine="20.10"), table=TABLE)) == 2
    assert stale(_run(cases=passed, suite="kubelet"), table=TABLE) == []


def test_a_case_that_fails_sometimes_may_pass() -> None:
    assert stale(_run(cases=(Case("kill 1", "passed", 1.0),)), table=TABLE) == []
    assert judged([Case("kill 1", "failed", 1.0, "137")], engine="28", table=TABLE)[0].state == "expected"


@pytest.mark.parametrize("entry", EXPECTED, ids=lambda entry: entry.name)
def test_entries_have_reasons_and_known_engines(entry: Expected) -> None:
    assert entry.reason
    assert set(entry.engines) <= set(ENGINES)
    assert "\n" not in entry.reason


# --- plan, results and page -------------------------------------------------------------------------------


def test_each_group_runs_on_each_engine() -> None:
    found = Binaries(None, {name: Program(Path("/bin", name), "1.36.2") for name in NODE_E2E})
    groups = [Group("first", "A", minutes=1, gates="G=true"), Group("second", "B", minutes=1, gates="")]
    planned = plan(found, engines=["20.10", "28"], suites=["node-e2e"], gates=["X=true"], groups=groups)
    assert [str(run) for run in planned.runs] == [
        "node-e2e first on engine 20.10 with G=true",
        "node-e2e second on engine 20.10",
        "node-e2e first on engine 28 with G=true",
        "node-e2e second on engine 28",
    ]


def test_names_of_groups_are_unique_and_fit_into_names_of_files() -> None:
    names = [group.name for group in GROUPS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)


def test_each_group_has_its_file() -> None:
    assert file_name(_run()) == "node-e2e_conformance_1.36.2_28_cgroup-v1-cgroupfs_python-3.11_amd64.json"
    assert file_name(_run(group="eviction")) != file_name(_run())


def test_the_summary_names_the_group_and_the_reasons_of_expected_failures() -> None:
    lines = summary([_run()]).splitlines()
    assert lines[2].split()[:2] == ["node-e2e", "conformance"]
    assert "expected, 1: needs a capability" in lines
    assert "FAILED node-e2e conformance 28: huge pages" in lines


def test_the_page_has_a_row_for_each_group_with_the_reasons_of_skips_and_expected_failures() -> None:
    lines = page(
        [_run(gates="G=true"), _run(gates="G=true", group="eviction", engine="20.10", cases=CASES[2:3])]
    ).splitlines()
    none = " | ".join(["\N{EN DASH}"] * 2)
    assert "1.36.2 with `G=true`, v1, cgroupfs, Python 3.11, amd64:" in lines
    assert f"| conformance | {none} | 2026-11-28: 1/2, 1 expected | {none} |" in lines
    assert f"| eviction | 2026-11-28: 1/1 | {none} | {none} |" in lines
    assert f"| swap | {none} | \N{EN DASH} | {none} |" in lines
    assert "| cgroup v2 only | 1 | 28 |" in lines
    assert "| needs a capability | 1 | 28 |" in lines
    assert "| huge pages | 28 with `G=true` |" in lines


# --- units ------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(units, "HOME", tmp_path / "units")
    return tmp_path


def _start(home: Path, script: str, *more: str) -> None:
    options = ["-p", "Delegate=true", "-p", f"StandardError=append:{home}/log", "--unit=kubelet-1.service"]
    units.run_as_unit([*options, "--slice=x", "--remain-after-exit", "/bin/sh", "-c", script, *more])


def _listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    units.control(["list-units", "*kubelet*", *options])
    return capsys.readouterr().out.splitlines()


def test_a_unit_runs_until_it_is_stopped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _start(home, "exec sleep 60")
    assert _listed(capsys, "--state=running") == ["kubelet-1.service loaded active running kubelet-1"]
    assert units.control(["is-active", "kubelet-1"]) == 0
    assert units.control(["stop", "kubelet-1.service"]) == 0
    assert _listed(capsys) == []


def test_a_killed_unit_is_listed_and_starts_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _start(home, "exec sleep 60")
    first = int((units.HOME / "kubelet-1/pid").read_text())
    assert units.control(["kill", "kubelet-1"]) == 0
    os.waitpid(first, 0)
    assert _listed(capsys, "--state=running") == []
    assert _listed(capsys) == ["kubelet-1.service loaded active exited kubelet-1"]
    assert units.control(["restart", "kubelet-1"]) == 0
    assert units.control(["is-active", "kubelet-1"]) == 0
    assert int((units.HOME / "kubelet-1/pid").read_text()) != first
    units.stop_all()


def test_doubled_signs_reach_the_command_once(home: Path) -> None:
    _start(home, 'printf "%%s" "$$1"', "it", "100%%")
    os.waitpid(int((units.HOME / "kubelet-1/pid").read_text()), 0)
    assert (home / "log").read_text() == "100%"
    units.stop_all()


def test_there_are_no_scopes(home: Path) -> None:
    assert units.run_as_unit(["--description=probe", "--scope", "true"]) != 0
    assert not units.HOME.exists()


def test_an_unknown_unit_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert units.control(["restart", "kubelet-9"]) == 5
    assert "kubelet-9 not found" in capsys.readouterr().err


def test_the_module_stands_for_both_programs() -> None:
    module = [sys.executable, "-m", "integration.conformance.node_e2e.units"]
    root = Path(__file__).parents[2]
    shown = subprocess.run([*module, "systemd-run", "--version"], cwd=root, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("systemd 2")
