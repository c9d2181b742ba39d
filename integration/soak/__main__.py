"""Soak test: `python -m integration.soak`, in isolation. Exits with 1 if anything grew or was left behind."""

import argparse
import math
import sys
import time

from integration.bench.setup import ENGINES, prepared, serving
from integration.node.commands import NodeError
from integration.soak import figures, phases
from integration.soak.figures import Phase, Report, Sample
from integration.soak.phases import Node
from integration.soak.samples import sample, settled

PROBES, PODS, SESSIONS, RESTARTS = 10_000, 2_000, 200, 20
WARM_UP = 0.05
"""Share of the work before the first sample, but all sessions: threads and buffers stay at their maximum."""
_LEAST = 8
"""Minimum of each kind in the warm-up."""


def main() -> int:
    """Run the soak test, and print its report."""
    arguments = _parser().parse_args()
    began = time.monotonic()
    try:
        report = soak(arguments.engine, scale=arguments.scale)
    except NodeError as cause:
        print(f"soak: {cause}", file=sys.stderr)
        return 1
    print(f"\n{figures.as_table(report)}")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes in all")
    return 0 if report.passed else 1


def soak(engine: str, *, scale: float) -> Report:
    """Do all work, scaled. Raises NodeError if setup fails."""
    with prepared(engine, settings={"live-restore": True}) as setup, serving(setup) as (server, cri):
        node = Node(setup, server, cri)
        print("warm-up", flush=True)
        _phases(node, scale=min(scale, WARM_UP), sessions=_scaled(SESSIONS, scale))
        before, snapshot = sample(server), setup.snapshot()
        print("soak", flush=True)
        done = _phases(node, scale=scale, sessions=_scaled(SESSIONS, scale))

        def left_behind(now: Sample) -> list[str]:
            return [*figures.processes_left(before, now), *snapshot.added(setup.snapshot())]

        def is_back(now: Sample) -> bool:
            left = left_behind(now)
            return all(bar.met for bar in figures.bars([], before=before, after=now, left_behind=left))

        after = settled(server, is_back)
        left = left_behind(after)
        return Report(
            phases=done,
            before=before,
            after=after,
            left_behind=left,
            bars=figures.bars(done, before=before, after=after, left_behind=left),
        )


def _phases(node: Node, *, scale: float, sessions: int) -> list[Phase]:
    return [
        phases.probes(node, count=_scaled(PROBES, scale)),
        phases.pods(node, count=_scaled(PODS, scale)),
        phases.sessions(node, count=sessions),
        phases.docker_restarts(node, count=math.ceil(RESTARTS * scale)),
    ]


def _scaled(count: int, scale: float) -> int:
    return max(_LEAST, round(count * scale))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to run on (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all amounts (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
