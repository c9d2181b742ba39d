"""A few short rounds of chaos on each image store; `make chaos` runs it for longer."""

import pytest

from integration.chaos import rounds
from integration.node.commands import NodeError
from integration.node.isolation import Node

ROUNDS = 4
LONGEST = 3.0
"""Seconds of a fault."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("engine", "seed"), [("28", 1), ("28-containerd", 2)])
def test_a_node_whose_parts_fail_is_whole_afterwards(
    node: Node, engine: str, seed: int, request: pytest.FixtureRequest
) -> None:
    wanted = request.config.getoption("--engine")
    if wanted and engine not in wanted:
        pytest.skip(f"--engine {' '.join(wanted)}")
    try:
        summary = rounds.run(
            node, engine=engine, seed=seed, longest=LONGEST, go_on=lambda done: done < ROUNDS, say=print
        )
    except NodeError as cause:
        pytest.skip(str(cause))
    assert summary.violations == [], f"{summary}; logs: {summary.kept}"
