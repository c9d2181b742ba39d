"""Two short rounds of the stress test; `make stress-network` runs 1,000 pods."""

import math

import pytest

from integration.networking.stress import stress
from integration.node.commands import NodeError
from integration.node.isolation import Node

SEED = 2
"""With this seed the first round deletes the state."""


@pytest.mark.timeout(240)
def test_kills_leave_no_network_state(node: Node, request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--engine")
    if wanted and "28" not in wanted:
        pytest.skip(f"--engine {' '.join(wanted)}")
    try:
        done = stress(node, engine="28", pods=12, width=6, seed=SEED, seconds=math.inf, say=print)
    except NodeError as cause:
        pytest.skip(str(cause))
    assert done.violations == []
    assert done.pods == 12
    assert "state lost" in done.faults
    assert done.faults.total() > 1
