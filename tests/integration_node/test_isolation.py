import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from integration.node import isolation
from integration.node.isolation import Node
from integration.node.packages import Record, Unpacked

UNPACKED = Unpacked(root=Path("/cache/tools"), record=Record(suite="testing", versions={"a": "1"}))
NODE = Node(
    stable=UNPACKED,
    newer=None,
    newer_missing="no mirror",
    tools=UNPACKED,
    busybox=Path("/cache/busybox"),
    monitoring=UNPACKED,
    shells=UNPACKED,
    podman=UNPACKED,
    kubectl=Path("/cache/kubectl"),
    newer_kubectl=None,
    newer_kubectl_missing="no mirror",
    newer_plugins=None,
    newer_plugins_missing="no mirror",
    older_plugins=None,
    older_plugins_missing="no mirror",
    cgroup_parent="/parent",
)


def test_a_node_is_read_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "NODE_FILE", tmp_path / "node.json")
    (tmp_path / "node.json").write_bytes(msgspec.json.encode(NODE, enc_hook=str))

    assert isolation.this_node() == NODE


def test_outside_of_a_box_there_is_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "NODE_FILE", tmp_path / "node.json")

    assert isolation.this_node() is None


@pytest.mark.parametrize("hierarchy", ["", "cpu/"], ids=["version 2", "version 1"])
def test_control_groups_go_with_their_box(hierarchy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_CGROUP_ROOT", tmp_path)
    kept = tmp_path / hierarchy / "kubepods/pod"
    for directory in (kept, tmp_path / hierarchy / "parent/pod/container"):
        directory.mkdir(parents=True)

    isolation.remove_control_groups("/parent")

    assert kept.exists()
    assert not (tmp_path / hierarchy / "parent").exists()


def test_only_control_groups_of_dead_boxes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_CGROUP_ROOT", tmp_path)
    living, dead = tmp_path / f"pydockershim-test-{os.getpid()}", tmp_path / "pydockershim-test-99999999"
    living.mkdir()
    dead.mkdir()

    isolation.sweep_control_groups()

    assert (living.exists(), dead.exists()) == (True, False)
    assert isolation.cgroup_parent_here() == f"/{living.name}"


def test_isolated_runs_that_this_process_has_started_are_found_by_their_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_CGROUP_ROOT", tmp_path)
    other = tmp_path / f"cpu/pydockershim-test-{os.getpid()}"
    other.mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        started = tmp_path / f"cpu/pydockershim-test-{child.pid}"
        started.mkdir()

        assert isolation.control_groups_of_children() == [started]

    assert isolation.control_groups_of_children() == []
