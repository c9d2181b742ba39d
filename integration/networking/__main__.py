"""Stress test of pod networks: `python -m integration.networking` in isolation. Exits with 1 at the first violation."""

import argparse
import math
import os
import sys

from integration.networking.stress import stress
from integration.node.commands import NodeError
from integration.node.engines import ENGINES
from integration.node.isolation import this_node


def main() -> int:
    """Run the stress test, and print its findings."""
    arguments = _parser().parse_args()
    node = this_node()
    if node is None:
        print("stress: it runs in isolation only: make stress-network", file=sys.stderr)
        return 1

    def say(line: str) -> None:
        print(line, flush=True)

    say(f"stress on engine {arguments.engine}, seed {arguments.seed}")
    try:
        done = stress(
            node,
            engine=arguments.engine,
            pods=arguments.pods,
            width=arguments.width,
            seed=arguments.seed,
            seconds=arguments.minutes * 60 or math.inf,
            say=say,
        )
    except NodeError as cause:
        print(f"stress: {cause}", file=sys.stderr)
        return 1
    say(f"\n{done}")
    return 1 if done.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.networking", description=__doc__)
    parser.add_argument("--pods", type=int, default=1000, help="how many in all (%(default)s)")
    parser.add_argument("--width", type=int, default=50, help="how many in one round (%(default)s)")
    parser.add_argument("--minutes", type=float, default=0, help="begin no round after this time")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)), help="of the kills (random)")
    parser.add_argument("--engine", choices=ENGINES, default="28", help="engine to run on (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
