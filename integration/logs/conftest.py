"""Containers with logs, of the shared server and of servers that a test may kill."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import HOST_NETWORK
from integration.node.engine import Engine
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

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

    def docker_log(self, container_id: str) -> Path:
        """Docker's own file."""
        return Path(str(self.served.engine.api.inspect_container(container_id)["LogPath"]))


@pytest.fixture
def logged(served: Served, images: Images, tmp_path: Path) -> Iterator[Logged]:
    """Give a pod on the shared server."""
    kubelet = Kubelet(served.cri, images.busybox)
    yield in_a_pod(served, kubelet, tmp_path / "pod-logs")
    kubelet.remove_all()


@pytest.fixture
def own(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Logged]:
    """Give a pod on a server of its own, whose copy by Docker is small."""
    with serving(engine, node_dirs, docker_log_max_size="64k", docker_log_max_file=3) as served:
        kubelet = Kubelet(served.cri, images.busybox)
        yield in_a_pod(served, kubelet, node_dirs.logs / "pod")
        kubelet.remove_all()


def in_a_pod(served: Served, kubelet: Kubelet, directory: Path) -> Logged:
    """Run a pod whose logs are below `directory`, which is not there yet."""
    return Logged(served, kubelet, kubelet.pod(log_directory=str(directory), linux=HOST_NETWORK), directory)
