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
    newer_runc=None,
    on_demand={"29-containerd": UNPACKED},
    tools=UNPACKED,
    busybox=Path("/cache/busybox"),
    monitoring=UNPACKED,
    log_agent=UNPACKED,
    shells=UNPACKED,
    podman=UNPACKED,
    kubectl=Path("/cache/kubectl"),
    newer_kubectl=None,
    newer_kubectl_missing="no mirror",
    newer_plugins=None,
    newer_plugins_missing="no mirror",
    older_plugins=None,
    older_plugins_missing="no mirror",
    criu=None,
    criu_missing="none",
    cgroup_driver="cgroupfs",
    cgroup_parent="/parent",
)


def test_a_node_is_read_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "NODE_FILE", tmp_path / "node.json")
    (tmp_path / "node.json").write_bytes(msgspec.json.encode(NODE, enc_hook=str))

    assert isolation.this_node() == NODE


def test_outside_of_a_box_there_is_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "NODE_FILE", tmp_path / "node.json")

    assert isolation.this_node() is None
