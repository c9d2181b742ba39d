"""A few short rounds of chaos; `make chaos` runs more."""

import pytest

from integration.chaos import rounds
from integration.node.commands import NodeError
from integration.node.isolation import Node

ROUNDS = 4
SEED = 2
LONGEST = 3.0
"""Longest fault, in seconds."""


@pytest.mark.timeout(900)
def test_a_node_recovers_when_its_parts_fail(node: Node, engine_name: str) -> None:
    try:
        summary = rounds.run(
            node, engine=engine_name, seed=SEED, longest=LONGEST, go_on=lambda done: done < ROUNDS, say=print
        )
    except NodeError as cause:
        pytest.skip(str(cause))
    assert summary.violations == [], f"{summary}; logs: {summary.kept}"
