import os
import subprocess
from pathlib import Path

import pytest

from integration.node import control_groups


def test_groups_have_the_paths_that_docker_and_kubelets_give_them() -> None:
    assert control_groups.path_below("/parent", "kubepods", "burstable") == "/parent/kubepods/burstable"
    assert control_groups.path_of_container("/parent/kubepods", "id") == "/parent/kubepods/id"


def test_slices_have_the_paths_that_systemd_and_kubelets_give_them() -> None:
    pods = control_groups.path_below("kubepods.slice", "burstable")
    assert pods == "/kubepods.slice/kubepods-burstable.slice"
    assert control_groups.path_of_container(pods, "id") == "/kubepods.slice/kubepods-burstable.slice/docker-id.scope"


def test_the_slice_of_a_run_is_below_the_root() -> None:
    name = control_groups.parent_here("systemd")
    assert control_groups.path_below(name) == f"/{name}"


def test_slices_are_left_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    (tmp_path / "parent.slice").mkdir()
    control_groups.remove("parent.slice")
    assert (tmp_path / "parent.slice").exists()


@pytest.mark.parametrize("hierarchy", ["", "cpu/"], ids=["version 2", "version 1"])
def test_control_groups_are_removed_with_their_box(
    hierarchy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    kept = tmp_path / hierarchy / "kubepods/pod"
    for directory in (kept, tmp_path / hierarchy / "parent/pod/container"):
        directory.mkdir(parents=True)

    control_groups.remove("/parent")

    assert kept.exists()
    assert not (tmp_path / hierarchy / "parent").exists()


def test_only_control_groups_of_dead_boxes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    living, dead = tmp_path / f"pydockershim-test-{os.getpid()}", tmp_path / "pydockershim-test-99999999"
    living.mkdir()
    dead.mkdir()

    control_groups.sweep()

    assert (living.exists(), dead.exists()) == (True, False)
    assert control_groups.parent_here("cgroupfs") == f"/{living.name}"


def test_isolated_runs_of_this_process_are_found_by_their_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    other = tmp_path / f"cpu/pydockershim-test-{os.getpid()}"
    other.mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        started = tmp_path / f"cpu/pydockershim-test-{child.pid}"
        started.mkdir()

        assert control_groups.of_children() == [started]

    assert control_groups.of_children() == []
