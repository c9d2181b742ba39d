"""Run a command isolated, with what the tests of the node image need: python -m integration.kind COMMAND."""

import os
import sys

from integration.kind.conftest import VARIABLE
from integration.kind.prepare import prepare
from integration.node.commands import NodeError
from integration.node.isolation import run_isolated
from integration.node.prepare import prepare as prepare_node


def main() -> int:
    """Prepare, and return the exit status of the command."""
    try:
        return _run(sys.argv[1:])
    except NodeError as cause:
        print(f"kind: {cause}", file=sys.stderr)
        return 1


def _run(command: list[str]) -> int:
    if os.geteuid() != 0:
        raise NodeError("a node in a privileged container needs root")
    prepared = prepare()
    os.environ[VARIABLE] = f"{prepared.base}:{prepared.wheels}"
    return run_isolated(command, node=prepare_node())


if __name__ == "__main__":
    sys.exit(main())
