from pathlib import Path

import pytest

from shim.hostfs.volumes import Volumes

LINES = """\
21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /mnt/nfs rw shared:2 - nfs4 server:/a rw
23 22 0:21 / /mnt/nfs/below rw - fuse x rw
24 21 0:22 / /mnt/with\\040blank rw - fuse y rw
"""


@pytest.mark.parametrize(
    ("path", "volume"),
    [
        ("/", "/"),
        ("/etc/hosts", "/"),
        ("/mnt/nfs", "/mnt/nfs"),
        ("/mnt/nfs/a/../b/", "/mnt/nfs"),
        ("/mnt/nfsx/a", "/"),
        ("/mnt/nfs/below/c", "/mnt/nfs/below"),
        ("/mnt/with blank/d", "/mnt/with blank"),
        ("labels of /mnt/nfs", "/"),
        ("", "/"),
    ],
)
def test_a_path_is_on_the_longest_mount_point_above_it(path: str, volume: str, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(LINES)
    volumes = Volumes(tmp_path / "mountinfo")
    assert volumes.of_path(path) == volume
    volumes.close()


def test_mount_points_of_this_machine_are_read() -> None:
    volumes = Volumes()
    assert volumes.of_path("/proc/1/environ") == "/"
    assert volumes.of_path("/sys/kernel") == volumes.of_path("/sys") == "/sys"
    volumes.close()


def test_all_paths_are_on_root_without_a_mount_table(tmp_path: Path) -> None:
    assert Volumes(tmp_path / "none").of_path("/mnt/nfs") == "/"
