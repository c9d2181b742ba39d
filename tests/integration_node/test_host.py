import json
import os
import subprocess
from pathlib import Path

import pytest

from integration.node import host
from integration.node.commands import NodeError
from integration.node.host import Undo


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [([{"type": "bridge", "bridge": "pods0"}], "pods0"), ([{"type": "loopback"}, {"type": "bridge"}], "cni0")],
    ids=["named", "default"],
)
def test_the_bridge_is_read_from_a_configuration_list(plugins: list[dict[str, str]], expected: str) -> None:
    assert host.bridge_of(json.dumps({"plugins": plugins}).encode()) == expected


def test_the_example_that_the_demo_installs_makes_a_bridge() -> None:
    assert host.bridge_of(host.EXAMPLE.read_bytes())


def test_a_configuration_list_without_a_bridge_is_an_error() -> None:
    with pytest.raises(NodeError, match="no plugin of type bridge"):
        host.bridge_of(b'{"plugins": [{"type": "ptp"}]}')


def test_a_process_is_identified_by_its_start_time() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert host.started_at(child.pid) >= host.started_at(os.getpid()) > 0
    finally:
        child.kill()
        child.wait()
    assert host.started_at(child.pid) == 0


def test_release_undoes_the_recorded_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, conf = tmp_path / "record.json", tmp_path / "10-bridge.conflist"
    monkeypatch.setattr(host, "_RECORD", record)
    conf.write_text("{}")
    child = subprocess.Popen(["sleep", "60"])
    Undo(conf=str(conf), bridge="none-such0", dockerd=child.pid, dockerd_started=host.started_at(child.pid)).save()

    host.release()

    assert child.wait(timeout=0) == -15
    assert not conf.exists()
    assert not record.exists()


def test_release_does_not_kill_another_process_with_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_RECORD", tmp_path / "record.json")
    Undo(dockerd=os.getpid(), dockerd_started=1).save()

    host.release()  # would end this test

    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ([], []),
        (["pods/lock", "pods/last_reserved_ip.0"], []),
        (["pods/lock", "pods/10.244.0.2"], ["pods", "pods/10.244.0.2", "pods/lock"]),
        (["pods/lock", "mine.conflist"], ["mine.conflist"]),
    ],
    ids=["nothing", "bookkeeping", "a lease", "a file of others"],
)
def test_directories_without_files_in_use_are_removed(files: list[str], left: list[str], tmp_path: Path) -> None:
    place = tmp_path / "cni"
    (place / "pods").mkdir(parents=True)
    for name in files:
        (place / name).write_text("")

    host.remove_unused(place)

    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == left
    assert place.exists() == bool(left)


def test_release_without_a_record_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_RECORD", tmp_path / "record.json")

    host.release()

    assert list(tmp_path.iterdir()) == []


def test_docker_has_a_control_group_in_each_hierarchy_of_version_1(tmp_path: Path) -> None:
    for name in ("cpu,cpuacct", "memory", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")

    found = host.control_groups_of_docker(tmp_path)

    assert found == [tmp_path / name / "docker" for name in ("cpu,cpuacct", "memory", "unified")]


def test_docker_has_one_control_group_in_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "system.slice").mkdir()

    assert host.control_groups_of_docker(tmp_path) == [tmp_path / "docker"]


def test_release_keeps_control_groups_that_others_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_RECORD", tmp_path / "record.json")
    unused, used = tmp_path / "memory/docker", tmp_path / "cpu/docker"
    unused.mkdir(parents=True)
    (used / "container").mkdir(parents=True)
    groups = [str(unused), str(used), str(tmp_path / "gone/docker")]
    Undo(dockerd=os.getpid(), dockerd_started=-1, control_groups=groups).save()

    host.release()

    assert not unused.exists()
    assert (used / "container").is_dir()


def test_the_own_network_of_the_demo_shares_nothing_with_the_example() -> None:
    example, own = (
        json.loads(text) for text in (host.EXAMPLE.read_bytes(), host.own_network(host.EXAMPLE.read_bytes()))
    )

    assert own["name"] != example["name"]
    for key in ("bridge", "ipam"):
        assert own["plugins"][0][key] != example["plugins"][0][key]
    assert own["plugins"][1:] == example["plugins"][1:]
