from pathlib import Path

import pytest

from shim.hostfs.mount_table import MountedOn, mount_from_mountinfo, mount_under
from tests.container.propagating import propagating_mounts

MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:41 / /odd\\040name rw shared:7 master:3 - tmpfs tmpfs rw
31 27 0:42 / /slave rw,nosuid master:1 propagate_from:2 - tmpfs tmpfs rw
32 27 0:43 / /bytes\xff\x0b\r\x1c\xc2\x85 rw unbindable - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (b"22", MountedOn(point="/proc", shared=False, slave=False)),
        (b"27", MountedOn(point="/", shared=True, slave=False)),
        (b"30", MountedOn(point="/odd name", shared=True, slave=True)),
        (b"31", MountedOn(point="/slave", shared=False, slave=True)),
        (b"32", MountedOn(point="/bytes\udcff\x0b\r\x1c\x85", shared=False, slave=False)),
        (b"2", MountedOn(point="/", shared=False, slave=False)),
    ],
    ids=["private", "shared", "both", "slave", "unbindable", "not listed"],
)
def test_mount_is_found_by_its_id(identity: bytes, expected: MountedOn) -> None:
    assert mount_from_mountinfo(MOUNTINFO, identity=identity) == expected


def test_mount_of_a_real_path_is_found(tmp_path: Path) -> None:
    with propagating_mounts(tmp_path) as mounts:
        for kind, path in mounts.items():
            expected = MountedOn(point=str(path.parent), shared=kind == "shared", slave=kind == "slave")
            assert mount_under(path) == expected
