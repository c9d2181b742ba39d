from pathlib import Path

import msgspec
import pytest

from integration.conformance.critest import OURS_TO_SKIP, cases_of
from integration.conformance.page import NOT_RUN, newest, page
from integration.conformance.report import Progress, summary, times
from integration.conformance.results import Case, Machine, Run, case, file_name, read, write
from integration.node.commands import NodeError

V1 = Machine(cgroup="v1", driver="cgroupfs", python="3.11", architecture="amd64")
CASES = (
    Case("exec works", "passed", 1.25),
    Case("logs rotate", "failed", 2.5, "expected 1\ngot 2"),
    Case("AppArmor denies", "skipped", 0.0, "AppArmor is disabled"),
    Case("AppArmor allows", "skipped", 0.0, "AppArmor is disabled"),
)


def _run(**fields: object) -> Run:
    values: dict[str, object] = {
        "suite": "kubelet",
        "version": "1.36.2",
        "engine": "28",
        "docker": "28.5.2",
        "date": "2026-11-23",
        "commit": "0123456789ab",
        "machine": V1,
        "binaries": {"kubelet": "1.36.2", "etcd": "3.5.30"},
        "cases": CASES,
    }
    return Run(**(values | fields))  # type: ignore[arg-type]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = (_run(), _run(gates="EventedPLEG=true", note="built from a tag"), _run(cases=()))
    write(tmp_path / "r.json", runs)
    assert read(tmp_path / "r.json") == runs
    assert (tmp_path / "r.json").read_text().count("\n  {") == 2 * len(CASES)


def test_a_file_of_another_shape_is_refused_by_the_name_of_the_field(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('[{"suite": "critest"}]')
    with pytest.raises(msgspec.ValidationError, match="missing required field `version`"):
        read(tmp_path / "r.json")


def test_repeated_runs_have_the_same_file() -> None:
    assert file_name(_run(date="2026-12-24")) == file_name(_run())
    assert file_name(_run()) == "kubelet_1.36.2_28_cgroup-v1-cgroupfs_python-3.11_amd64.json"
    assert file_name(_run(gates="A=true,B=false")).startswith("kubelet_1.36.2_A-true-B-false_28_")


def test_the_summary_counts_groups_skips_and_shows_failures() -> None:
    text = summary([_run(), _run(gates="EventedPLEG=true", cases=CASES[:1])])
    lines = text.splitlines()
    assert lines[2].split() == ["kubelet", "1.36.2", "28", "(28.5.2)", "default", "1", "1", "0", "2", "3.8"]
    assert lines[3].split()[4:] == ["EventedPLEG=true", "1", "0", "0", "0", "1.2"]
    assert "skipped, 2: AppArmor is disabled" in lines
    assert text.endswith("FAILED kubelet 28: logs rotate\n    expected 1\n    got 2")


def test_times_are_a_line_for_each_case() -> None:
    lines = times(_run()).splitlines()
    assert [line.rstrip() for line in lines[2:4]] == [
        "exec works       passed       1.2",
        "logs rotate      failed       2.5",
    ]


def test_progress_is_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 11.0, 12.0, 22.0])
    progress = Progress("critest", now=lambda: next(clock))
    for word in ("one", "two", "three", "four"):
        progress(word)
    assert capsys.readouterr().out.splitlines() == ["    ... critest: two (11 s)", "    ... critest: four (22 s)"]


def test_cases_are_read_from_ginkgos_report() -> None:
    known = next(iter(OURS_TO_SKIP))
    specs: list[dict[str, object]] = [
        {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
        {"LeafNodeType": "It", "LeafNodeText": "runs", "State": "passed", "RunTime": 1_500_000_000}
        | {"ContainerHierarchyTexts": ["[k8s.io] Pod"]},
        {"LeafNodeType": "It", "LeafNodeText": "ends", "State": "panicked", "Failure": {"Message": "no"}},
        {"LeafNodeType": "It", "LeafNodeText": "hides", "State": "skipped", "Failure": {"Message": "no AppArmor\n"}},
        {"LeafNodeType": "It", "LeafNodeText": known, "State": "skipped"},
        {"LeafNodeType": "AfterSuite", "LeafNodeText": "", "State": "failed", "Failure": {"Message": "left over"}},
    ]
    found = cases_of(msgspec.json.encode([{"SuitePath": "x", "SpecReports": specs}, {"SpecReports": None}]))
    assert found == (
        Case("AfterSuite", "failed", 0.0, "left over"),
        Case("[k8s.io] Pod runs", "passed", 1.5),
        Case("ends", "failed", 0.0, "no"),
        Case("hides", "skipped", 0.0, "no AppArmor"),
        Case(known, "skipped", 0.0, OURS_TO_SKIP[known]),
    )


def test_a_case_that_failed_for_a_missing_feature_of_the_machine_is_skipped() -> None:
    message = "start container 1: unable to apply caps: operation not permitted"
    assert case("privileged", "failed", 1.0, message).state == "skipped"
    assert "lacks a capability" in case("privileged", "failed", 1.0, message).reason
    assert case("other", "failed", 1.0, "permission denied") == Case("other", "failed", 1.0, "permission denied")


def test_a_malformed_report_is_an_error() -> None:
    with pytest.raises(NodeError, match="read critest's report"):
        cases_of(b"{")


def test_the_page_has_a_cell_for_each_engine_and_names_missing_runs() -> None:
    critest = _run(suite="critest", version="1.36.0", engine="20.10")
    lines = page([_run(), _run(date="2026-01-01"), critest]).splitlines()
    cells = f"{NOT_RUN} | {NOT_RUN} | 2026-11-23: 1/2 | {NOT_RUN} | {NOT_RUN}"
    row = f"| 1.36.2 | defaults | v1, cgroupfs | 3.11 | amd64 | {cells} |"
    assert row in lines
    others = " | ".join([NOT_RUN] * 4)
    assert f"| 1.36.0 | v1, cgroupfs | 3.11 | amd64 | 2026-11-23: 1/2 | {others} |" in lines
    assert "| AppArmor is disabled | 2 | 28 |" in lines
    assert "| logs rotate | 28 |" in lines
    assert f"| control groups v2, driver systemd | {NOT_RUN} | {NOT_RUN} |" in lines
    assert not [line for line in lines if line.startswith("| amd64")]
    assert any(line.startswith("| Kubernetes 1.36.2 | 28.5.2 (0123456789ab) | etcd 3.5.30 |") for line in lines)


def test_crashing_pods_have_a_table_with_counts() -> None:
    cases = (
        Case("pods that crash", "passed", 3605.0),
        Case("no two live containers of one name", "passed", 0, "2400 containers were started"),
        Case("no container is asked for while it runs", "failed", 0, "k8s_a"),
    )
    text = page([_run(), _run(suite="churn", gates="EventedPLEG=true", cases=cases)])
    cell = "2026-11-23: 60 minutes, 2400 containers were started, 1 of 3 checks failed"
    cells = f"{NOT_RUN} | {NOT_RUN} | {cell} | {NOT_RUN} | {NOT_RUN}"
    row = f"| 1.36.2 | `EventedPLEG=true` | v1, cgroupfs | 3.11 | amd64 | {cells} |"
    assert row in text.partition("## Pods that crash")[2].splitlines()


def test_the_projects_tests_have_a_table_without_gates() -> None:
    v2 = Machine(cgroup="v2", driver="cgroupfs", python="3.11", architecture="amd64")
    text = page([_run(suite="tests", version="0.1.0", machine=v2, binaries={})])
    table = text.partition("## Tests")[2].partition("## Not run")[0].splitlines()
    cells = f"{NOT_RUN} | {NOT_RUN} | 2026-11-23: 1/2 | {NOT_RUN} | {NOT_RUN}"
    assert f"| 0.1.0 | v2, cgroupfs | 3.11 | amd64 | {cells} |" in table
    assert f"| control groups v2, driver cgroupfs | {NOT_RUN} | {NOT_RUN} |" in text.splitlines()


def test_equal_notes_have_a_number_and_stand_once_below_the_table() -> None:
    runs = [_run(note="1.36.2 from a tag"), _run(version="1.36.1", note="1.36.1 from a tag"), _run(engine="20.10")]

    rows = page(runs).partition("## Versions")[2].splitlines()

    assert rows[-1] == "- (1): from a tag"
    assert [row.rpartition(" | ")[2] for row in rows if row.startswith("| Kubernetes")] == ["(1) |", " |", "(1) |"]


def test_the_newer_of_two_runs_of_a_cell_counts() -> None:
    older, newer = _run(date="2026-01-01"), _run(date="2026-11-23")
    assert newest([newer, older]) == [newer]


def test_a_page_without_results_claims_nothing() -> None:
    text = page([])
    assert "2026" not in text
    assert text.count(NOT_RUN) >= 2 * 10
