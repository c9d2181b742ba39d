"""Carry out the order in a directory: `integration.conformance.node_e2e.launch` starts it in isolation."""

import sys
from pathlib import Path

from integration.conformance.node_e2e.launch import carry_out
from integration.node.isolation import this_node

if __name__ == "__main__":
    node = this_node()
    assert node is not None, "only in isolation"
    carry_out(node, Path(sys.argv[1]))
