"""Directories of the node in containers."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.pods.kubelet import Kubelet, Pod, secured
from shim.api.v1 import api_pb2 as pb


@pytest.mark.parametrize("readonly", [True, False])
def test_a_directory_of_the_node_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "note").write_text("hello")
    mount = pb.Mount(host_path=str(tmp_path), container_path="/data", readonly=readonly)

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.inside(container, "cat /data/note") == "hello"
    assert kubelet.cri.exec(container, "touch", "/data/new").exit_code == (1 if readonly else 0)
    assert (tmp_path / "new").exists() is not readonly
    assert list(kubelet.cri.container_status(container).mounts) == [mount]


def test_a_missing_host_path_becomes_a_directory(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path / "not/there"), container_path="/data")

    container = kubelet.started(pod, mounts=[mount])

    assert kubelet.cri.exec(container, "touch", "/data/x").exit_code == 0
    assert (tmp_path / "not/there/x").exists()


def test_a_link_on_the_node_is_followed(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/note").write_text("behind")
    (tmp_path / "link").symlink_to("real")
    mount = pb.Mount(host_path=str(tmp_path / "link"), container_path="/data")

    assert kubelet.inside(kubelet.started(pod, mounts=[mount]), "cat /data/note") == "behind"


def test_a_single_file_is_mounted(kubelet: Kubelet, pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("1.2.3.4 here\n")
    mount = pb.Mount(host_path=str(tmp_path / "hosts"), container_path="/etc/hosts")

    assert kubelet.inside(kubelet.started(pod, mounts=[mount]), "cat /etc/hosts") == "1.2.3.4 here\n"


def mounted(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    (directory / "late").touch()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts are shared with containers that want them."""
    directory = tmp_path / "shared"
    directory.mkdir()
    yield directory
    while (
        subprocess.run(["umount", "--recursive", directory / "sub"], check=False, capture_output=True).returncode == 0
    ):
        pass


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(pb.PROPAGATION_PRIVATE, 1), (pb.PROPAGATION_HOST_TO_CONTAINER, 0), (pb.PROPAGATION_BIDIRECTIONAL, 0)],
    ids=["private", "host to container", "bidirectional"],
)
def test_later_mounts_of_the_node_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: int
) -> None:
    mount = pb.Mount(host_path=str(shared), container_path="/data", propagation=propagation)
    container = kubelet.started(pod, mounts=[mount])

    mounted(shared / "sub")

    assert kubelet.cri.exec(container, "ls", "/data/sub/late").exit_code == seen


@pytest.mark.parametrize(
    ("propagation", "seen"),
    [(pb.PROPAGATION_HOST_TO_CONTAINER, False), (pb.PROPAGATION_BIDIRECTIONAL, True)],
    ids=["host to container", "bidirectional"],
)
def test_mounts_of_the_container_are_seen_when_asked_for(
    kubelet: Kubelet, pod: Pod, shared: Path, propagation: pb.MountPropagation, seen: bool
) -> None:
    mount = pb.Mount(host_path=str(shared), container_path="/data", propagation=propagation)
    unconfined = pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    mounter = secured(
        capabilities=pb.Capability(add_capabilities=["SYS_ADMIN"]), seccomp=unconfined, apparmor=unconfined
    )
    container = kubelet.started(pod, mounts=[mount], **mounter)

    script = "mkdir /data/sub && mount -t tmpfs tmpfs /data/sub && touch /data/sub/late"
    assert kubelet.inside(container, script) == ""

    assert (shared / "sub/late").exists() is seen
