"""A pod, and the command line client of its engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.by_hand.hands import Hands, new_hands
from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet


@pytest.fixture
def hands(served: Served, images: Images, tmp_path: Path) -> Iterator[Hands]:
    """Run a pod on the shared server; remove it and all other containers at the end."""
    kubelet = Kubelet(served.cri, images.busybox)
    try:
        yield new_hands(served, kubelet, tmp_path)
    finally:
        served.wait_answers()
        kubelet.remove_all()
