"""One stock node for all tests of an Engine."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.networking.lab import Lab, lab
from integration.node.isolation import Node
from integration.node.mounts import unmount_all

_DEFAULT_PLACES = Path("/var/lib/cni"), Path("/run/netns")
"""Where plugins, podman and servers have their state under default settings, as in no other tests."""


@pytest.fixture(scope="package")
def stock(node: Node, engine_name: str) -> Iterator[Lab]:
    """Run a stock node; each test puts its own network in force."""
    with lab(node, engine_name) as made:
        yield made
    for place in _DEFAULT_PLACES:
        unmount_all(place)
        shutil.rmtree(place, ignore_errors=True)
