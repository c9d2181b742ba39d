"""Run chaos for a given time: `python -m integration.chaos`, in isolation. Exits with 1 at the first violation."""

import argparse
import os
import sys
import time

from integration.chaos import rounds
from integration.chaos.faults import FAULTS
from integration.node.commands import NodeError
from integration.node.engines import ENGINES
from integration.node.isolation import this_node


def main() -> int:
    """Run the rounds and print a summary."""
    arguments = _parser().parse_args()
    node = this_node()
    if node is None:
        print("chaos: runs only in isolation: make chaos", file=sys.stderr)
        return 1
    until = time.monotonic() + arguments.minutes * 60

    def go_on(done: int) -> bool:
        return bool(done < arguments.rounds if arguments.rounds else time.monotonic() < until)

    def say(line: str) -> None:
        print(line, flush=True)

    seed = arguments.seed
    say(f"chaos on engine {arguments.engine}, seed {seed}, faults of up to {arguments.seconds:g} s")
    try:
        summary = rounds.run(
            node,
            engine=arguments.engine,
            seed=seed,
            longest=arguments.seconds,
            go_on=go_on,
            say=say,
            only=arguments.only,
        )
    except NodeError as cause:
        print(f"chaos: {cause}", file=sys.stderr)
        return 1
    say(f"\n{summary}")
    return 1 if summary.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long to run, in minutes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=0, help="number of rounds, instead of --minutes")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)), help="seed of the schedule (random)")
    parser.add_argument("--engine", choices=ENGINES, default="28", help="engine to run on (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="longest fault, in seconds (%(default)s)")
    parser.add_argument("--only", default="", help=f"only faults whose name contains this text: {', '.join(FAULTS)}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
