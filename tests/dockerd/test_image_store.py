"""The directories of both kinds of image store are found."""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from shim.dockerd import image_store
from shim.dockerd.image_store import (
    container_root,
    has_writable_layers,
    is_measurable,
    layer_directory,
    store_parts,
    store_root,
    writable_directory,
)
from shim.engine.answers import EngineInfo

SNAPSHOTTER = "io.containerd.snapshotter.v1"
PLUGIN = f"{SNAPSHOTTER}.overlayfs"
ROOT_MOUNT = (
    "1083 990 0:152 / / rw,relatime master:311 - overlay overlay rw,lowerdir=/a/1/fs:/a/2/fs,"
    "upperdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/12/fs,workdir=/w,xino=off"
)
OTHER_MOUNT = "1084 1083 0:155 / /proc rw,nosuid - proc proc rw"


def containerd_info(root: Path) -> EngineInfo:
    return EngineInfo(
        docker_root_dir=str(root), driver="overlayfs", driver_status=[["driver-type", SNAPSHOTTER], ["more", "rows"]]
    )


def test_a_graph_driver_keeps_images_in_the_data_root() -> None:
    info = EngineInfo(docker_root_dir="/var/lib/docker", driver="overlay2", driver_status=[["Supports d_type", "true"]])
    assert store_root(info, pids=[]) == Path("/var/lib/docker")


def test_roots_of_containers_are_mounted_below_the_data_root() -> None:
    assert container_root(containerd_info(Path("/data")), "c1") == Path("/data/rootfs/overlayfs/c1")
    assert container_root(EngineInfo(docker_root_dir="/data", driver="overlay2"), "c1") is None


def test_a_running_container_names_the_snapshotter(tmp_path: Path) -> None:
    for pid, lines in {11: [OTHER_MOUNT], 13: [OTHER_MOUNT, ROOT_MOUNT]}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "mountinfo").write_text("\n".join(lines) + "\n")
    # process 12 has exited
    assert store_root(containerd_info(tmp_path), pids=[11, 12, 13], proc=tmp_path) == Path(
        "/var/lib/containerd", PLUGIN
    )


@pytest.mark.parametrize("present", [["docker"], ["docker", "system"], ["system"], []], ids=str)
def test_the_store_is_searched_without_running_containers(
    present: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, system = tmp_path / "docker", tmp_path / "containerd"
    places = {"docker": docker / "containerd/daemon" / PLUGIN, "system": system / PLUGIN}
    for name in present:
        places[name].mkdir(parents=True)
    monkeypatch.setattr(image_store, "_SYSTEM_CONTAINERD", system)
    expected = places[present[0]] if present else docker
    assert store_root(containerd_info(docker), pids=[]) == expected


def graph_info(root: Path, driver: str) -> EngineInfo:
    return EngineInfo(docker_root_dir=str(root), driver=driver, driver_status=[["Supports d_type", "true"]])


@pytest.mark.parametrize(
    ("driver", "relative", "expected"),
    [
        ("overlay2", "ab/diff", "/data/docker/overlay2/ab/diff"),
        ("overlay2", "../../etc", None),
        ("btrfs", "ab/diff", None),
    ],
)
def test_the_directory_of_a_layer_with_a_relative_mount_path(driver: str, relative: str, expected: str | None) -> None:
    found = layer_directory(graph_info(Path("/data/docker"), driver), Path(relative))

    assert found == (None if expected is None else Path(expected))


@pytest.mark.parametrize(
    ("driver", "written", "expected"),
    [
        ("vfs", "ab", "vfs/dir/ab"),
        ("fuse-overlayfs", "ab", "fuse-overlayfs/ab/diff"),
        ("overlay2", "ab", None),
        ("vfs", "", None),
        ("vfs", "..", None),
        ("vfs", "a/b", None),
        ("vfs", "\0\0", None),
        ("vfs", None, None),
    ],
    ids=["vfs", "fuse", "named by mounts", "empty", "above", "a path", "power loss", "removed"],
)
def test_the_writable_layer_comes_from_dockers_record(
    tmp_path: Path, driver: str, written: str | None, expected: str | None
) -> None:
    record = tmp_path / "image" / driver / "layerdb/mounts/c1"
    record.mkdir(parents=True)
    if written is not None:
        (record / "mount-id").write_text(written)

    found = writable_directory(graph_info(tmp_path, driver), "c1")
    assert found == (None if expected is None else tmp_path / expected)


@pytest.mark.parametrize(
    ("driver", "shows"), [("overlay2", True), ("vfs", True), ("fuse-overlayfs", True), ("btrfs", False), ("zfs", False)]
)
def test_drivers_with_measurable_writable_layers(driver: str, *, shows: bool) -> None:
    assert has_writable_layers(graph_info(Path("/data"), driver)) is shows
    assert has_writable_layers(containerd_info(Path("/data")))


@pytest.mark.parametrize(
    ("driver", "layers"), [("overlay2", "overlay2"), ("fuse-overlayfs", "fuse-overlayfs"), ("vfs", "vfs/dir")]
)
def test_image_layers_are_listed_by_chain_id(tmp_path: Path, driver: str, layers: str) -> None:
    chains = tmp_path / "image" / driver / "layerdb/sha256"
    for chain, cache_id in {"c1": "aa", "c2": "bb"}.items():
        (chains / chain).mkdir(parents=True)
        (chains / chain / "cache-id").write_text(cache_id)
    (chains / "half-removed").mkdir()
    mounts = tmp_path / "image" / driver / "layerdb/mounts/container"
    mounts.mkdir(parents=True)
    (mounts / "mount-id").write_text("cc")

    found = store_parts(graph_info(tmp_path, driver), tmp_path, known=["c2", "c3"], in_use=())

    assert found == {"c1": tmp_path / layers / "aa", "c2": None}


@pytest.mark.parametrize("damaged", [b"", b".", b"..", b"../..", b"/etc", b"\0\0\0\0"])
def test_a_damaged_layer_is_left_out(tmp_path: Path, damaged: bytes) -> None:
    for name, cache_id in (("aa", damaged), ("bb", b"\xff"), ("cc", b"good")):
        chain = tmp_path / "image/overlay2/layerdb/sha256" / name
        chain.mkdir(parents=True)
        (chain / "cache-id").write_bytes(cache_id)
    layers = tmp_path / "overlay2"
    found = store_parts(graph_info(tmp_path, "overlay2"), tmp_path, known=(), in_use=())
    assert found == {"bb": layers / os.fsdecode(b"\xff"), "cc": layers / "good"}


def test_a_driver_whose_layers_share_blocks_is_not_measurable(tmp_path: Path) -> None:
    assert not is_measurable(graph_info(tmp_path, "btrfs"))


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store_parts(graph_info(tmp_path, "overlay2"), tmp_path, known=(), in_use=())


def test_a_store_without_an_image_is_empty(tmp_path: Path) -> None:
    (tmp_path / "image/overlay2/layerdb").mkdir(parents=True)

    assert store_parts(graph_info(tmp_path, "overlay2"), tmp_path, known=(), in_use=()) == {}


def test_a_store_of_containerd_without_an_image_is_empty(tmp_path: Path) -> None:
    root = tmp_path / PLUGIN
    (root / "snapshots").mkdir(parents=True)
    (tmp_path / "io.containerd.content.v1.content").mkdir()

    assert parts(root, in_use=[]) == {}


@pytest.fixture
def snapshotter(tmp_path: Path) -> Path:
    root = tmp_path / PLUGIN
    for number in ("1", "2", "3"):
        (root / "snapshots" / number / "fs").mkdir(parents=True)
    (tmp_path / "io.containerd.content.v1.content/blobs/sha256").mkdir(parents=True)
    return root


def parts(snapshotter: Path, *, in_use: list[Path]) -> dict[str, Path | None]:
    return store_parts(containerd_info(snapshotter.parent), snapshotter, known=(), in_use=in_use)


def test_snapshots_and_blobs_are_listed_without_running_containers(snapshotter: Path) -> None:
    found = parts(snapshotter, in_use=[snapshotter / "snapshots/2/fs", Path("/elsewhere/snapshots/3/fs")])

    blobs = snapshotter.parent / "io.containerd.content.v1.content/blobs/sha256"
    assert sorted(map(str, found.values())) == sorted(
        [f"{snapshotter}/snapshots/{each}" for each in "13"] + [str(blobs)]
    )


def test_a_part_that_may_have_changed_has_another_key(snapshotter: Path) -> None:
    names = [set(parts(snapshotter, in_use=[]))]
    blobs = snapshotter.parent / "io.containerd.content.v1.content/blobs/sha256"
    for age, change in ((20, 1), (100, 2), (119, 2), (3000, 3), (10**7, 3)):
        os.utime(snapshotter / "snapshots/1", (0, time.time() - age))
        os.utime(blobs, ns=(0, change))
        names.append(set(parts(snapshotter, in_use=[])))

    assert [len(now - before) for before, now in pairwise(names)] == [1, 2, 0, 2, 0]
