"""Run a command in isolation, prepared for the tests of the node image: python -m integration.kind COMMAND."""

import os
import sys
from pathlib import Path

from integration.kind.conftest import PROGRAMS_VARIABLE, VARIABLE
from integration.kind.prepare import ensure_tools, prepare
from integration.node.commands import NodeError
from integration.node.isolation import run_isolated
from integration.node.prepare import prepare as prepare_node


def main() -> int:
    """Prepare the node image's parts, and return the exit status of the command."""
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
    if directory := os.environ.get("BIN"):
        os.environ[PROGRAMS_VARIABLE] = f"{Path(directory).absolute()}:{ensure_tools()}"
    return run_isolated(command, node=prepare_node())


if __name__ == "__main__":
    sys.exit(main())
