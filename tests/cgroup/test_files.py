from pathlib import Path

import pytest

from shim.cgroup import files
from shim.cgroup.files import read, read_list, with_those_below
from shim.cgroup.places import Group
from tests.cgroup.pieces import in_pieces
from tests.cgroup.trees import group_v1, group_v2

MANY = list(range(1_000_000, 1_020_000))


def listed(pids: list[int]) -> bytes:
    return b"".join(b"%d\n" % pid for pid in pids)


def test_a_list_of_the_kernel_is_longer_than_a_page() -> None:
    at_once, whole = read("/proc/self/smaps"), read_list("/proc/self/smaps")

    assert at_once is not None
    assert whole is not None
    assert len(at_once) < len(whole)


def test_what_is_not_there() -> None:
    assert (read("/proc/self/nothing"), read_list("/proc/self/nothing"), read_list("/proc/self/fd")) == (None,) * 3


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_group_with_very_many_processes(tmp_path: Path, version: str) -> None:
    group: Group = group_v1("c1", root=tmp_path) if version == "v1" else group_v2("c1", root=tmp_path)
    directory = tmp_path / ("memory/c1" if version == "v1" else "c1")
    directory.mkdir(parents=True)
    with in_pieces(directory / "cgroup.procs", listed(MANY)):
        assert group.process_ids() == MANY


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_processes_in_groups_that_a_container_made(tmp_path: Path, version: str) -> None:
    group: Group = group_v1("c1", root=tmp_path) if version == "v1" else group_v2("c1", root=tmp_path)
    directory = tmp_path / ("memory/c1" if version == "v1" else "c1")
    for name, pid in ((".", 5), ("init.scope", 7), ("system.slice/a.service", 8)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / "cgroup.procs").write_bytes(listed([pid]))

    assert sorted(group.process_ids()) == [5, 7, 8]


def test_of_very_many_groups_not_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_GROUPS", 3)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)

    assert len(with_those_below(str(tmp_path))) == 3
