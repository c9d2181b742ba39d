"""One stock node for all tests of an Engine."""

from collections.abc import Iterator

import pytest

from integration.networking.lab import Lab, lab
from integration.node.isolation import Node


@pytest.fixture(scope="package")
def stock(node: Node, engine_name: str) -> Iterator[Lab]:
    """Run a stock node; each test puts its own network in force."""
    with lab(node, engine_name) as made:
        yield made
