import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.cgroup import files
from shim.cgroup.files import OpenFiles, read, read_list, with_descendants
from shim.cgroup.places import UNIFIED, Group, this_machines_mounts
from tests.cgroup.pieces import in_pieces
from tests.cgroup.trees import group_v1, group_v2
from tests.facts import open_descriptors

MANY = list(range(1_000_000, 1_020_000))


def listed(pids: list[int]) -> bytes:
    return b"".join(b"%d\n" % pid for pid in pids)


def test_read_list_returns_more_than_a_page() -> None:
    at_once, whole = read("/proc/self/smaps"), read_list("/proc/self/smaps")

    assert at_once is not None
    assert whole is not None
    assert len(at_once) < len(whole)


def test_reads_of_missing_files_return_none() -> None:
    assert (read("/proc/self/nothing"), read_list("/proc/self/nothing"), read_list("/proc/self/fd")) == (None,) * 3


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_all_processes_of_a_large_group_are_listed(tmp_path: Path, version: str) -> None:
    group: Group = group_v1("c1", root=tmp_path) if version == "v1" else group_v2("c1", root=tmp_path)
    directory = tmp_path / ("memory/c1" if version == "v1" else "c1")
    directory.mkdir(parents=True)
    with in_pieces(directory / "cgroup.procs", listed(MANY)):
        assert group.process_ids() == MANY


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_processes_in_subgroups_of_a_container_are_listed(tmp_path: Path, version: str) -> None:
    group: Group = group_v1("c1", root=tmp_path) if version == "v1" else group_v2("c1", root=tmp_path)
    directory = tmp_path / ("memory/c1" if version == "v1" else "c1")
    for name, pid in ((".", 5), ("init.scope", 7), ("system.slice/a.service", 8)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / "cgroup.procs").write_bytes(listed([pid]))

    assert sorted(group.process_ids()) == [5, 7, 8]


def test_the_number_of_groups_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_GROUPS", 3)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)

    assert len(with_descendants(str(tmp_path))) == 3


@pytest.fixture
def open_before(monkeypatch: pytest.MonkeyPatch) -> int:
    gc.collect()
    monkeypatch.setattr(files._OpenFile, "descriptors", set())  # other tests may have files open
    return open_descriptors()


@pytest.fixture
def kernel_group() -> Iterator[Path]:
    """An empty group of the kernel's own."""
    mounts = this_machines_mounts()
    mount = mounts.get("cpuacct") or mounts.get(UNIFIED)
    if mount is None:
        pytest.skip("no tree of control groups is mounted")
    directory = Path(mount.point, "pydockershim-test-files")
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield directory
    if directory.exists():
        directory.rmdir()


def test_a_file_kept_open_is_read_again(tmp_path: Path, open_before: int) -> None:
    kept, path = OpenFiles(), tmp_path / "cpu.stat"
    path.write_text("first, and longer")
    assert kept.read(str(path)) == b"first, and longer"
    path.write_text("second")

    assert kept.read(str(path)) == b"second"
    assert open_descriptors() == open_before + 1
    del kept
    assert open_descriptors() == open_before
    assert files._OpenFile.descriptors == set()


def test_a_missing_file_is_opened_once_it_exists(tmp_path: Path) -> None:
    kept, path = OpenFiles(), tmp_path / "cpu.stat"
    assert kept.read(str(path)) is None
    path.write_text("here")

    assert kept.read(str(path)) == b"here"


def test_reads_fail_after_the_group_of_an_open_file_is_removed(kernel_group: Path, open_before: int) -> None:
    kept, path = OpenFiles(), str(kernel_group / "cgroup.procs")
    assert kept.read(path) == b""
    assert open_descriptors() == open_before + 1
    kernel_group.rmdir()

    assert kept.read(path) is None
    assert open_descriptors() == open_before
    assert kept.read(path) is None


def test_a_recreated_group_is_opened_again(kernel_group: Path, open_before: int) -> None:
    kept, path = OpenFiles(), str(kernel_group / "cgroup.procs")
    assert kept.read(path) == b""
    kernel_group.rmdir()
    kernel_group.mkdir()

    assert [kept.read(path), kept.read(path)] == [b"", b""]
    assert open_descriptors() == open_before + 1


def test_two_threads_share_the_descriptor_of_a_file(tmp_path: Path, open_before: int) -> None:
    kept, path = OpenFiles(), tmp_path / "cpu.stat"
    path.write_text("here")

    assert kept._opened(str(path)) is kept._opened(str(path))
    assert open_descriptors() == open_before + 1


def test_files_beyond_the_bound_are_opened_for_each_read(
    tmp_path: Path, open_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_KEPT_OPEN", 2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text(path.name)
    several = [OpenFiles() for _ in paths]

    for _ in range(2):
        assert [each.read(str(path)) for each, path in zip(several, paths, strict=True)] == [b"a", b"b", b"c"]
    assert open_descriptors() == open_before + 2


def test_the_descriptor_limit_bounds_the_files_kept_open(
    tmp_path: Path, open_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    kept = OpenFiles()
    for name in "abcd":
        (tmp_path / name).write_text(name)
        assert kept.read(str(tmp_path / name)) == name.encode()

    assert open_descriptors() == open_before + 2
