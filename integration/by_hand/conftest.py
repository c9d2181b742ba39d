"""A pod, and the command line of its engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.by_hand.hands import DockerCli, Hands, new_hands
from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet


@pytest.fixture
def hands(served: Served, images: Images, tmp_path: Path) -> Iterator[Hands]:
    """Run a pod on the shared server; what a test left of it is removed, and strangers with it."""
    kubelet = Kubelet(served.cri, images.busybox)
    docker = DockerCli(served.engine, home=tmp_path / "docker")
    (tmp_path / "logs").mkdir()
    try:
        yield new_hands(docker, served, kubelet, logs=tmp_path / "logs")
    finally:
        served.wait_answers()
        kubelet.remove_all()
