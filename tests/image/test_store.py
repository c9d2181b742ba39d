"""The directory of the image store is found for both kinds of store."""

from pathlib import Path

import pytest

from shim.engine.interface import EngineInfo
from shim.image import store
from shim.image.store import store_root

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


def test_a_running_container_tells_the_snapshotter(tmp_path: Path) -> None:
    for pid, lines in {11: [OTHER_MOUNT], 13: [OTHER_MOUNT, ROOT_MOUNT]}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "mountinfo").write_text("\n".join(lines) + "\n")
    # 12 has ended
    assert store_root(containerd_info(tmp_path), pids=[11, 12, 13], proc=tmp_path) == Path(
        "/var/lib/containerd", PLUGIN
    )


@pytest.mark.parametrize("present", [["docker"], ["docker", "system"], ["system"], []], ids=str)
def test_without_containers_known_places_are_tried(
    present: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, system = tmp_path / "docker", tmp_path / "containerd"
    places = {"docker": docker / "containerd/daemon" / PLUGIN, "system": system / PLUGIN}
    for name in present:
        places[name].mkdir(parents=True)
    monkeypatch.setattr(store, "_SYSTEM_CONTAINERD", system)
    expected = places[present[0]] if present else docker
    assert store_root(containerd_info(docker), pids=[]) == expected
