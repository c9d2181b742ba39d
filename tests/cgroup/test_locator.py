import pytest

from shim.cgroup.locator import CgroupLocator, Place
from shim.cgroup.places import groups_from_proc, mounts_from_mountinfo, this_machines_mounts
from shim.cgroup.v1 import GroupV1
from shim.domain.errors import NotFound
from tests.cgroup.trees import MOUNTINFO_V1, POD_V1, POD_V2

ID = "c" * 64
POD, SLICE = f"/{POD_V1}", f"/{POD_V2}"
LOCATOR = CgroupLocator(mounts_from_mountinfo(MOUNTINFO_V1))
"""The locator of a machine with version 1. These tests never fill its cache."""


def of_process(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process have this /proc/<pid>/cgroup."""
    monkeypatch.setattr("shim.cgroup.places.groups_of_process", lambda _pid: groups_from_proc(text.encode()))


def test_find_uses_only_trees_with_a_group_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_process(f"9:pids:/\n4:memory:{POD}/{ID}/init.scope\n2:cpu,cpuacct:{POD}/{ID}\n0::/\n", monkeypatch)

    assert LOCATOR.find(ID, pid=7) == GroupV1(
        cpu_directory=f"/sys/fs/cgroup/cpu,cpuacct{POD}/{ID}",
        cpuacct=f"/sys/fs/cgroup/cpu,cpuacct{POD}/{ID}",
        memory_directory=f"/sys/fs/cgroup/memory{POD}/{ID}",
        pids_directory="",
        blkio="",
        hugetlb="",
        unified="",
    )


@pytest.mark.parametrize(
    "text",
    [f"4:memory:{POD}\n0::/\n", f"0::{SLICE}/docker-{'d' * 64}.scope\n", "", f"4:memory:/\n0::{POD}/{ID}\n"],
    ids=["the pod's", "another container's", "none", "ending"],
)
def test_find_refuses_the_group_of_another_container(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_process(text, monkeypatch)

    assert LOCATOR.place(ID, pid=7) is None
    with pytest.raises(NotFound, match=f"process 7 is in no control group of container {ID}"):
        LOCATOR.find(ID, pid=7)


def test_a_place_is_cached_for_each_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    locator = CgroupLocator(mounts_from_mountinfo(MOUNTINFO_V1))
    of_process(f"4:memory:{POD}/{ID}\n0::/\n", monkeypatch)
    first = locator.place(ID, pid=7)
    assert isinstance(first, Place)
    assert isinstance(first.pod, GroupV1)
    assert first.pod.memory_directory == f"/sys/fs/cgroup/memory{POD}"
    of_process("", monkeypatch)

    assert locator.place(ID, pid=7) is first
    assert locator.place(ID, pid=8) is None
    assert locator.place(ID, pid=0) is None


@pytest.mark.parametrize(
    ("pids", "is_known"), [({ID: 7}, True), ({}, False), ({ID: 8}, False)], ids=["runs", "gone", "runs again"]
)
def test_keep_only_drops_the_places_of_other_processes(
    pids: dict[str, int], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    locator = CgroupLocator(mounts_from_mountinfo(MOUNTINFO_V1))
    of_process(f"4:memory:{POD}/{ID}\n0::/\n", monkeypatch)
    locator.place(ID, pid=7)
    of_process("", monkeypatch)

    locator.keep_only(pids)

    assert (locator.place(ID, pid=7) is not None) is is_known


def test_the_mounts_of_this_machine_are_read() -> None:
    assert this_machines_mounts()


@pytest.mark.parametrize(
    ("parent", "systemd", "path"),
    [
        ("/kubepods/besteffort/pod1", False, "/kubepods/besteffort/pod1/c1"),
        ("kubepods/", False, "/kubepods/c1"),
        (
            "kubepods-besteffort-pod1.slice",
            True,
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/docker-c1.scope",
        ),
        ("user.slice", True, "/user.slice/docker-c1.scope"),
    ],
)
def test_directory_follows_dockers_cgroup_driver(parent: str, systemd: bool, path: str) -> None:
    assert LOCATOR.directory("c1", parent=parent, systemd=systemd) == f"/sys/fs/cgroup/memory{path}"


def test_directory_is_empty_without_a_cgroup_mount() -> None:
    assert CgroupLocator({}).directory("c1", parent="/a", systemd=False) == ""
