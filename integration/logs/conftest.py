"""Containers with logs, of the shared server and of servers that a test may kill."""

import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.cri import HOST_NETWORK
from integration.networks import bridge, conflist
from integration.node.box import HOME, Node
from integration.node.engine import remove_link
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

LINK = "logs0"
DOCKER_SIZE, DOCKER_FILES = "256k", 4
EXITED = pb.CONTAINER_EXITED


@dataclass(frozen=True, slots=True)
class Logged:
    """A pod with a log directory, and what runs containers in it."""

    served: Served
    kubelet: Kubelet
    pod: Pod
    directory: Path

    def run(self, script: str, **fields: Any) -> tuple[str, Path]:
        """Start a container that runs a shell script; its id, and the path of its log."""
        name = f"{secrets.token_hex(3)}/0.log"
        container_id = self.kubelet.started(self.pod, "sh", "-c", script, log_path=name, **fields)
        return container_id, self.directory / name

    def wait_exited(self, container_id: str, seconds: float = 30.0) -> None:
        """Return once its status says so, and not later: what is read then is all there is."""
        cri = self.served.cri
        wait_until(lambda: cri.container_status(container_id).state == EXITED, seconds)

    def reopen(self, container_id: str) -> None:
        """Have a new file made."""
        self.served.cri.runtime.ReopenContainerLog(pb.ReopenContainerLogRequest(container_id=container_id))

    def rotate(self, container_id: str, path: Path, number: int) -> None:
        """Do what a kubelet does with a log that is too long."""
        path.rename(path.with_name(f"{path.name}.{number:04}"))
        self.reopen(container_id)

    def stats(self) -> dict[str, Any]:
        """How logging does, as the verbose Status tells."""
        answer = self.served.cri.runtime.Status(pb.StatusRequest(verbose=True))
        found: dict[str, Any] = msgspec.json.decode(answer.info["config"])["logs"]
        return found

    def worker(self) -> int:
        """Pid of the log process, once there is one."""
        return int(wait_until(lambda: self.stats()["pid"]))

    def crash(self) -> None:
        """Kill the server."""
        self.served.server.kill()
        self.served.server.socket.unlink()

    def docker_log(self, container_id: str) -> Path:
        """Docker's own file."""
        return Path(str(self.served.engine.api.inspect_container(container_id)["LogPath"]))


@pytest.fixture
def logged(served: Served, images: Images, tmp_path: Path) -> Iterator[Logged]:
    """Give a pod on the shared server."""
    kubelet = Kubelet(served.cri, images.busybox)
    yield in_a_pod(served, kubelet, tmp_path / "pod-logs")
    kubelet.remove_all()


@pytest.fixture(scope="module")
def own_server(served: Served, node: Node) -> Iterator[Served]:
    """Run a server that tests may kill, instead of the shared one: two would both copy the logs of an engine."""
    served.server.stop()
    dirs = make_node_dirs(node, HOME / f"logs-{secrets.token_hex(3)}")
    network = bridge(dirs.cni_leases, link=LINK, subnets=("10.94.0.0/16",))
    (dirs.cni_conf / "10-logs.conflist").write_text(conflist(network, name="logs"))
    try:
        with serving(served.engine, dirs, docker_log_max_size=DOCKER_SIZE, docker_log_max_file=DOCKER_FILES) as made:
            yield made
    finally:
        unmount(dirs.netns)
        remove_link(LINK)
        served.server.start()


@pytest.fixture
def own(own_server: Served, images: Images, tmp_path: Path) -> Iterator[Logged]:
    """Give a pod on a server that may be killed, whose copy by Docker is small."""
    if not own_server.server.daemon.running:
        own_server.server.start()  # a test that failed has left it so
    kubelet = Kubelet(own_server.cri, images.busybox)
    yield in_a_pod(own_server, kubelet, tmp_path / "pod-logs")
    kubelet.remove_all()


def unmount(directory: Path) -> None:
    """Take away the mount that the directory of pinned namespaces is made to be."""
    if directory.is_mount():
        subprocess.run(["umount", directory], check=True)


def in_a_pod(served: Served, kubelet: Kubelet, directory: Path) -> Logged:
    """Run a pod whose logs are below `directory`, which is not there yet."""
    return Logged(served, kubelet, kubelet.pod(log_directory=str(directory), linux=HOST_NETWORK), directory)
