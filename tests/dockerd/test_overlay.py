import os
from pathlib import Path

import pytest

from shim.base.proc import mounts
from shim.dockerd.overlay import root_upper_directory, upper_directories, upper_directory

GRAPH = (
    "1083 990 0:152 / / rw,relatime master:311 - overlay overlay rw,lowerdir=/a/1/diff:/a/2/diff,"
    "upperdir=/var/lib/docker/overlay2/ab/diff,workdir=/w"
)
SNAPSHOT = (
    "1083 990 0:152 / / rw,relatime master:311 - overlay overlay rw,lowerdir=/a/1/fs:/a/2/fs,"
    "upperdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/12/fs,workdir=/w,xino=off"
)
OTHER_MOUNT = "1084 1083 0:155 / /proc rw,nosuid - proc proc rw"
BOUND_OVERLAY = "1085 1083 0:160 / /mnt rw - overlay overlay rw,lowerdir=/x,upperdir=/elsewhere,workdir=/w"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([OTHER_MOUNT, BOUND_OVERLAY, GRAPH], "/var/lib/docker/overlay2/ab/diff"),
        ([SNAPSHOT], "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/12/fs"),
        ([OTHER_MOUNT, BOUND_OVERLAY], ""),
        (["29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard"], ""),
        ([], ""),
    ],
    ids=["graph driver", "containerd store", "no root mount", "no overlay", "no mounts"],
)
def test_the_upper_directory_of_the_root_mount(lines: list[str], expected: str) -> None:
    assert root_upper_directory(mounts("\n".join(lines).encode())) == Path(expected)


def test_escaped_characters_in_mounts_are_decoded() -> None:
    line = GRAPH.replace("/var/lib/docker", r"/data/of\040docker\054\134new")

    assert root_upper_directory(mounts(line.encode())) == Path("/data/of docker,\\new/overlay2/ab/diff")


def test_the_writable_layer_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(f"{OTHER_MOUNT}\n{GRAPH}\n")

    assert upper_directory(tmp_path) == Path("/var/lib/docker/overlay2/ab/diff")
    assert not upper_directory(Path(f"/proc/{os.getpid()}")).is_relative_to("/var/lib/docker")


def test_an_exited_process_has_no_writable_layer() -> None:
    assert upper_directory(Path("/proc/4194305")) == Path()


def test_mounts_of_a_container_cannot_pose_as_its_root(tmp_path: Path) -> None:
    forged = b"1 1 0:1 / / rw - overlay overlay upperdir=/etc"
    odd = b"1090 1083 0:160 / /a\xff\x0b4 5\x1c\r%b\r rw - tmpfs tmpfs rw\n\nshort\n" % forged
    (tmp_path / "mountinfo").write_bytes(odd + GRAPH.encode() + b"\n")

    assert upper_directory(tmp_path) == Path("/var/lib/docker/overlay2/ab/diff")


def test_the_writable_layers_in_the_daemons_mounts(tmp_path: Path) -> None:
    lines = [OTHER_MOUNT, GRAPH.replace(" / / ", " / /var/lib/docker/overlay2/ab/merged "), BOUND_OVERLAY]
    (tmp_path / "mountinfo").write_text("\n".join([*lines, "7 1 0:9 / /ro rw - overlay overlay ro,lowerdir=/a", ""]))

    assert upper_directories(tmp_path) == {Path("/var/lib/docker/overlay2/ab/diff"), Path("/elsewhere")}
    assert upper_directories(tmp_path / "gone") == set()
