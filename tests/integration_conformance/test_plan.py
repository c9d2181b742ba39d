from pathlib import Path

import pytest

from integration.conformance import binaries
from integration.conformance.binaries import NODE, Binaries, Program, version_of
from integration.conformance.cluster import parse_gates, settings_of_version
from integration.conformance.plan import Planned, plan
from integration.node.commands import NodeError


def _found(*names: str, directory: Path | None = None) -> Binaries:
    return Binaries(directory, {name: Program(Path("/bin", name), "1.2.3") for name in names})


def test_each_suite_runs_on_each_engine_and_kubelets_with_each_set_of_gates() -> None:
    found = plan(_found("critest", *NODE), engines=["20.10", "28"], suites=["critest", "kubelet"], gates=["", "A=true"])
    assert found.left_out == ()
    assert [str(run) for run in found.runs] == [
        "critest on engine 20.10",
        "critest on engine 28",
        "kubelet on engine 20.10",
        "kubelet on engine 20.10 with A=true",
        "kubelet on engine 28",
        "kubelet on engine 28 with A=true",
    ]


def test_pods_crash_with_each_set_of_gates() -> None:
    found = plan(_found(*NODE), engines=["28"], suites=["churn"], gates=["", "A=true"])
    assert [str(run) for run in found.runs] == ["churn on engine 28", "churn on engine 28 with A=true"]


def test_a_missing_program_leaves_its_suite_out_and_is_named_with_a_place_to_put_it() -> None:
    some = [name for name in NODE if name not in ("etcd", "kubelet")]
    there = _found("critest", *some, directory=Path("/opt/k8s"))
    found = plan(there, engines=["28"], suites=["critest", "kubelet"], gates=[""])
    assert found.runs == (Planned("critest", "28"),)
    assert found.left_out == ("kubelet is not run: etcd, kubelet are missing; put it in /opt/k8s or on PATH",)


def test_without_any_program_nothing_is_planned() -> None:
    found = plan(_found(), engines=["28"], suites=["critest", "kubelet"], gates=[""])
    assert found.runs == ()
    assert [line.partition(" ")[0] for line in found.left_out] == ["critest", "kubelet"]
    assert "a directory (BIN=dir) or on PATH" in found.left_out[0]


def test_programs_are_looked_for_in_the_directory_first_and_asked_for_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, version in (("ours", "1.36.2"), ("theirs", "1.20.0")):
        (tmp_path / place).mkdir()
        for name in ("kubelet", "etcd") if place == "theirs" else ("kubelet",):
            program = tmp_path / place / name
            program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Kubernetes v{version}"\n')
            program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'theirs'}:/usr/bin:/bin")
    found = binaries.find(tmp_path / "ours", ("kubelet", "etcd", "no-such-program"))
    assert found.programs["kubelet"] == Program(tmp_path / "ours" / "kubelet", "1.36.2")
    assert found.programs["etcd"] == Program(tmp_path / "theirs" / "etcd", "1.20.0")
    assert found.missing(["kubelet", "no-such-program"]) == ["no-such-program"]


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="nowhere is not a directory"):
        binaries.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ("Kubernetes v1.36.2\n", "1.36.2"),
        ("etcd Version: 3.5.30\nGit SHA: Not provided\nGo Version: go1.26.4\n", "3.5.30"),
        ("critest version: 1.36.0-4-gba03eabc\nPASS\n", "1.36.0-4-gba03eabc"),
        ("Client Version: v1.36.4\nKustomize Version: v5.8.1\n", "1.36.4"),
    ],
)
def test_versions_are_read_from_what_programs_say(banner: str, version: str) -> None:
    assert version_of(banner, name="it") == version


def test_a_program_that_prints_no_version_is_an_error() -> None:
    with pytest.raises(NodeError, match=r"read the version of it: none in 'hello'"):
        version_of("hello\n", name="it")


def test_gates_are_names_with_true_or_false() -> None:
    assert parse_gates("A=true,B=false") == {"A": True, "B": False}
    assert parse_gates("") == {}
    with pytest.raises(NodeError, match="'B=yes' is not NAME=true"):
        parse_gates("A=true,B=yes")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("1.27.7", []),
        ("1.28.3", ["KubeletCgroupDriverFromCRI", "SidecarContainers"]),
        ("1.30.1", ["KubeletCgroupDriverFromCRI"]),
        ("1.31.14", ["ImageVolume"]),
        ("1.32.13", ["KubeletCrashLoopBackOffMax", "ImageVolume"]),
        ("1.36.2", ["KubeletCrashLoopBackOffMax"]),
    ],
)
def test_a_kubelet_gets_no_gate_that_it_does_not_know(version: str, known: list[str]) -> None:
    settings = settings_of_version(version, gates={"EventedPLEG": True})

    assert settings["featureGates"] == {"EventedPLEG": True} | dict.fromkeys(known, True)
    assert ("crashLoopBackOff" in settings) == ("KubeletCrashLoopBackOffMax" in known)
