from pathlib import Path

import pytest

from shim.cgroup.places import (
    Mount,
    cut_behind,
    group_at,
    groups_from_proc,
    groups_of_process,
    mounts_from_mountinfo,
    parents,
)
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2
from shim.domain.errors import NotFound
from tests.cgroup.trees import MOUNTINFO_V1, MOUNTINFO_V2, POD_V1, POD_V2

ID = "c" * 64
POD, SLICE = f"/{POD_V1}", f"/{POD_V2}"


def proc(path: str, *, unified: str) -> bytes:
    table = f"9:pids:{path}\n4:memory:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:/init.scope\n0::{unified}\n"
    return table.encode()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"0::{POD}/{ID}\n", f"{POD}/{ID}"),
        (f"0::{SLICE}/docker-{ID}.scope\n", f"{SLICE}/docker-{ID}.scope"),
        (f"0::{SLICE}/docker-{ID}.scope/init.scope\n", f"{SLICE}/docker-{ID}.scope"),
    ],
    ids=["cgroupfs", "systemd", "systemd inside the container"],
)
def test_group_at_finds_the_version_2_directory(text: str, path: str) -> None:
    groups = cut_behind(groups_from_proc(text.encode()), ID)
    mounts = mounts_from_mountinfo(MOUNTINFO_V2)

    assert group_at(groups, mounts) == GroupV2(f"/sys/fs/cgroup{path}")
    assert group_at(parents(groups), mounts) == GroupV2(f"/sys/fs/cgroup{Path(path).parent}")


@pytest.mark.parametrize(
    ("unified", "expected"),
    [
        (f"{POD}/{ID}", f"/sys/fs/cgroup/unified{POD}/{ID}"),
        ("/", ""),
        ("/system.slice/docker.service", ""),
    ],
    ids=["a group of its own", "the root", "of another container"],
)
def test_a_hybrid_machine_uses_the_unified_group_of_the_same_name(unified: str, expected: str) -> None:
    groups = cut_behind(groups_from_proc(proc(f"{POD}/{ID}", unified=unified)), ID)

    assert group_at(groups, mounts_from_mountinfo(MOUNTINFO_V1)) == GroupV1(
        cpu_directory=f"/sys/fs/cgroup/cpu,cpuacct{POD}/{ID}",
        cpuacct=f"/sys/fs/cgroup/cpu,cpuacct{POD}/{ID}",
        memory_directory=f"/sys/fs/cgroup/memory{POD}/{ID}",
        pids_directory=f"/sys/fs/cgroup/pids{POD}/{ID}",
        blkio="",
        hugetlb="",
        unified=expected,
    )


def test_the_parent_group_on_a_hybrid_machine_is_the_pods() -> None:
    groups = parents(cut_behind(groups_from_proc(proc(f"{POD}/{ID}", unified=f"{POD}/{ID}")), ID))
    pod = group_at(groups, mounts_from_mountinfo(MOUNTINFO_V1))

    assert isinstance(pod, GroupV1)
    assert (pod.memory_directory, pod.unified) == (f"/sys/fs/cgroup/memory{POD}", f"/sys/fs/cgroup/unified{POD}")


def test_the_parent_of_a_topmost_group_is_the_root() -> None:
    assert parents({"memory": "/docker", "pids": "/"}) == {"memory": "/", "pids": "/"}


@pytest.mark.parametrize(
    ("root", "group", "expected"),
    [
        ("/", "/a/b", "/mnt/a/b"),
        ("/a", "/a/b", "/mnt/b"),
        ("/a", "/a", "/mnt"),
        ("/", "/", "/mnt"),
        ("/x", "/a", "/mnt/a"),
        ("/foo", "/foobar/c", "/mnt/foobar/c"),
    ],
    ids=["whole tree", "part of it", "that part", "root", "another part", "a longer name"],
)
def test_a_group_below_a_partly_mounted_tree(root: str, group: str, expected: str) -> None:
    assert Mount("/mnt", root).directory(group) == expected


def test_names_of_groups_and_mounts_may_hold_any_character() -> None:
    odd = b"a\x0b0::/b\r1:memory:/c\x1c\xc2\x85\xe2\x80\xa8 d:\xff"
    name = odd.decode(errors="surrogateescape")
    assert groups_from_proc(b"4:memory:/%b\n0::/%b\n" % (odd, odd)) == {"memory": f"/{name}", "": f"/{name}"}

    line = b"32 30 0:28 /%b /sys/%b rw - cgroup  rw,memory,name=x\n" % (odd.replace(b" ", rb"\040"), rb"a\040b")
    mount = Mount(point="/sys/a b", root=f"/{name}")
    assert mounts_from_mountinfo(line) == {"rw": mount, "memory": mount, "name=x": mount}


def test_no_group_is_found_without_memory_accounting() -> None:
    with pytest.raises(NotFound, match="no cgroup tree that counts memory"):
        group_at({"pids": "/"}, mounts_from_mountinfo(MOUNTINFO_V1))


def test_the_groups_of_an_exited_process_are_not_found() -> None:
    with pytest.raises(NotFound, match="control groups of process 4194305"):
        groups_of_process(2**22 + 1)
