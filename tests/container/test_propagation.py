import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.propagation import MountedOn, check_propagation, mount_from_mountinfo, mount_under
from shim.errors import FailedPrecondition
from tests.mounts import need_root, unmount_below

MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:41 / /odd\\040name rw shared:7 master:3 - tmpfs tmpfs rw
31 27 0:42 / /slave rw,nosuid master:1 propagate_from:2 - tmpfs tmpfs rw
32 27 0:43 / /bytes\udcff rw unbindable - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ("22", MountedOn(point="/proc", shared=False, slave=False)),
        ("27", MountedOn(point="/", shared=True, slave=False)),
        ("30", MountedOn(point="/odd\\040name", shared=True, slave=True)),
        ("31", MountedOn(point="/slave", shared=False, slave=True)),
        ("32", MountedOn(point="/bytes\udcff", shared=False, slave=False)),
        ("2", MountedOn(point="/", shared=False, slave=False)),
    ],
    ids=["private", "shared", "both", "slave", "unbindable", "not listed"],
)
def test_a_mount_is_found_by_its_id(identity: str, expected: MountedOn) -> None:
    assert mount_from_mountinfo(MOUNTINFO, identity=identity) == expected


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A directory on a mount of each kind."""
    need_root()
    found = {}
    for kind in ("shared", "private", "slave"):
        point = tmp_path / kind
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
        subprocess.run(["mount", "--make-shared" if kind == "slave" else f"--make-{kind}", point], check=True)
        found[kind] = point
    # A slave has a master: the same file system once more, made to follow the first.
    subprocess.run(["mount", "--bind", found["slave"], found["slave"]], check=True)
    subprocess.run(["mount", "--make-slave", found["slave"]], check=True)
    for point in found.values():
        (point / "volume").mkdir()
    yield {kind: point / "volume" for kind, point in found.items()}
    unmount_below(tmp_path)


def test_the_kernel_tells_what_a_path_is_on(mounts: dict[str, Path]) -> None:
    for kind, path in mounts.items():
        assert mount_under(path) == MountedOn(point=str(path.parent), shared=kind == "shared", slave=kind == "slave")


PRIVATE, IN, BOTH = pb.PROPAGATION_PRIVATE, pb.PROPAGATION_HOST_TO_CONTAINER, pb.PROPAGATION_BIDIRECTIONAL


@pytest.mark.parametrize(
    ("kind", "propagation"),
    [("shared", IN), ("shared", BOTH), ("slave", IN), ("shared", PRIVATE), ("slave", PRIVATE), ("private", PRIVATE)],
)
def test_what_the_mount_allows_is_fine(mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation) -> None:
    check_propagation(mounts[kind], propagation=propagation, field="config.mounts[0]")
    check_propagation(mounts[kind] / "not/there", propagation=propagation, field="config.mounts[0]")


@pytest.mark.parametrize(
    ("kind", "propagation", "wanted"),
    [("private", IN, "shared or slave"), ("private", BOTH, "shared"), ("slave", BOTH, "shared")],
)
def test_what_it_does_not_is_refused_with_the_way_out(
    mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation, wanted: str
) -> None:
    point = mounts[kind].parent
    with pytest.raises(FailedPrecondition) as refusal:
        check_propagation(mounts[kind], propagation=propagation, field="config.mounts[2]")
    assert str(refusal.value) == (
        f"config.mounts[2].propagation {pb.MountPropagation.Name(propagation)}: {mounts[kind]} is on the mount {point},"
        f" which is not {wanted}; `mount --make-rshared {point}` on the node makes it so"
    )


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedPrecondition, match=r"config\.mounts\[0\]\.host_path .*/below: not a directory"):
        check_propagation(tmp_path / "file/below", propagation=BOTH, field="config.mounts[0]")
