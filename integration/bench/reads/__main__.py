"""Measure reads. The exit status says whether the measurement succeeded, not how fast the server is."""

import argparse
import os
import sys
from pathlib import Path

from integration.bench.machine import docker, machine
from integration.bench.reads import figures
from integration.bench.reads.exits import exits
from integration.bench.reads.figures import Report
from integration.bench.reads.lists import CONTAINERS, pods_up, timed_reads
from integration.bench.reads.relists import relists
from integration.bench.reads.stops import reads_beside_stops
from integration.bench.setup import ENGINES, prepared, serving
from integration.cri import container_config
from integration.node.commands import NodeError, step
from integration.node.images import BUSYBOX


def main() -> int:
    """Measure, print the table and write the JSON."""
    arguments = _parser().parse_args()
    try:
        report = measure(arguments.engine, pods=arguments.pods, relist_seconds=arguments.seconds, stops=arguments.stops)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    print(f"\n{figures.as_table(report)}")
    if arguments.json is not None:
        arguments.json.write_bytes(figures.as_json(report))
    return 0


def measure(engine_name: str, *, pods: int, relist_seconds: int, stops: int) -> Report:
    """Measure with `pods` pods, and first with a fifth of them. Raises NodeError if setup fails."""
    load_before = os.getloadavg()[0]
    some = max(1, pods // 5)
    with prepared(engine_name) as setup, serving(setup) as (server, cri):
        made = pods_up(cri, first=0, count=some)
        measured = figures.reads(timed_reads(cri, setup.engine, pod=made[0]), containers=some * (CONTAINERS + 1))
        with step(f"{pods} pods up"):
            made += pods_up(cri, first=some, count=pods - some)
        containers = pods * (CONTAINERS + 1)
        measured += figures.reads(timed_reads(cri, setup.engine, pod=made[0]), containers=containers)
        with step("exits"):
            exited = figures.reads(exits(cri, setup.engine, container=made[0].containers[0]), containers=containers)
        brief = container_config("brief", image=BUSYBOX, command=("true",))
        with step(f"relists for {relist_seconds} s"):
            ticker = cri.create(made[0].id, brief, pod=made[0].config)
            relist = relists(cri, server, setup.engine, container=ticker, seconds=relist_seconds)
        with step(f"{stops} stops"):
            busy = figures.reads(reads_beside_stops(cri, made, count=stops), containers=containers + stops)
        return Report(
            machine=machine(load_before),
            engine=docker(setup.engine),
            reads=measured,
            relist=relist,
            exits=exited,
            busy=busy,
            stops=stops,
            bars=figures.bars(measured, relist=relist, exits=exited, busy=busy, stops=stops),
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench.reads", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--pods", type=int, default=100, help="number of pods (%(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="duration of the relists (%(default)s)")
    parser.add_argument("--stops", type=int, default=200, help="number of containers stopped at once (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
