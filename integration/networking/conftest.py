"""A stock node that the tests of an Engine share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.networking.lab import Lab, lab
from integration.node.isolation import Node
from integration.node.mounts import unmount_all

_DEFAULT_PLACES = Path("/var/lib/cni"), Path("/run/netns")
"""State directories of plugins, podman and servers with default settings, which no other tests use."""


@pytest.fixture(scope="package")
def stock(node: Node, engine_name: str) -> Iterator[Lab]:
    """Run a stock node; each test configures its network."""
    with lab(node, engine_name) as made:
        yield made
    for place in _DEFAULT_PLACES:
        unmount_all(place)
        shutil.rmtree(place, ignore_errors=True)
