"""Compare the server with the floor.

The exit status says whether the measurement succeeded, not how fast the server is.
"""

import argparse
import datetime as dt
import sys
from pathlib import Path

from integration.bench import rivals
from integration.bench.measure import measure
from integration.bench.picture import drawn
from integration.bench.report import as_json, as_table
from integration.bench.setup import ENGINES
from integration.node.commands import NodeError


def main() -> int:
    """Measure, print the table and write the JSON."""
    arguments = _parser().parse_args()
    try:
        report = measure(arguments.engine, rounds=arguments.rounds, pods=arguments.pods, beside=arguments.beside)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # the shell's code for SIGINT; everything has been removed by now
    print(f"\n{as_table(report)}")
    if arguments.json is not None:
        arguments.json.write_bytes(as_json(report))
    if arguments.picture is not None:
        today = dt.datetime.now(tz=dt.UTC).date()
        arguments.picture.write_text(drawn(report, date=today.isoformat()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=_count, default=15, help="rounds without and with other pods (%(default)s)")
    parser.add_argument("--pods", type=_count, default=50, help="number of other pods (%(default)s)")
    parser.add_argument(
        "--beside",
        type=_program,
        action="append",
        default=[],
        metavar="PROGRAM",
        help="measure this containerd or cri-dockerd too; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON to this file")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="write a picture of the figures as SVG to this file"
    )
    return parser


def _program(text: str) -> Path:
    program = Path(text).absolute()
    if not rivals.known(program):
        raise argparse.ArgumentTypeError(f"{program.name} is not a server that the benchmark can start")
    if not program.is_file():
        raise argparse.ArgumentTypeError(f"no such file: {program}")
    return program


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
