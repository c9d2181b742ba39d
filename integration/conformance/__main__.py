"""Run upstream's programs against the server: `python -m integration.conformance` (`make conformance`).

Exits with 1 if a case failed, or passed though it was expected to fail, with 2 if nothing could run, and with 3 if
there was no time for all cases (`--resume`).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from integration.conformance import binaries, results, suites
from integration.conformance.machine import commit
from integration.conformance.node_e2e.expected import stale
from integration.conformance.node_e2e.groups import GROUPS
from integration.conformance.parts import Parts, is_open
from integration.conformance.plan import DEFAULT_GATES, DEFAULT_SUITES, OF_CRITEST, SUITES, Plan, plan, program_of
from integration.conformance.report import summary, times
from integration.node.commands import NodeError, step
from integration.node.engines import ENGINES, available
from integration.node.isolation import Node, this_node
from integration.nri_plugins import TOGETHER

_JSON = Path("build/conformance.json")


def main() -> int:
    """Run the planned suites and print their results."""
    arguments = _parser().parse_args()
    node = this_node()
    if node is None:
        print("conformance: runs only in isolation: make conformance", file=sys.stderr)
        return 2
    try:
        found = binaries.find(arguments.bin)
        planned = plan(
            found,
            engines=arguments.engine or available(node),
            suites=arguments.suite or (OF_CRITEST if arguments.resume else DEFAULT_SUITES),
            gates=arguments.gates if arguments.gates is not None else DEFAULT_GATES,
            groups=[group for group in GROUPS if group.name in (arguments.group or (group.name,))],
        )
        runs = _carry_out(planned, node=node, found=found, arguments=arguments)
    except NodeError as cause:
        print(f"conformance: {cause}", file=sys.stderr)
        return 2
    if unexpected := [line for run in runs for line in stale(run)]:
        print("\n".join(unexpected))
        return 1
    return _status(runs, planned)


def _carry_out(
    planned: Plan, *, node: Node, found: binaries.Binaries, arguments: argparse.Namespace
) -> list[results.Run]:
    for program, what in found.programs.items():
        print(f"{program:24} {what.version:20} {what.path}")
    for line in planned.left_out:
        print(line)
    sys.stdout.flush()
    runs: list[results.Run] = []
    began_at = commit()
    parts = Parts(arguments.resume, time.monotonic() + arguments.seconds) if arguments.resume else None
    for one in planned.runs:
        version = found.programs[program_of(one.suite)].version
        if parts and (kept := parts.kept(one, version=version, driver=node.cgroup_driver)) is not None:
            runs.append(kept)
            _keep(runs, arguments)
            continue
        if parts and parts.over:
            print(f"{one} is not run: no time is left")
            continue
        options = suites.Options(
            date=_today(),
            commit=began_at,
            only=arguments.only,
            minutes=arguments.minutes,
            note=arguments.note,
            nri_plugins=arguments.nri_plugins,
            parts=parts,
        )
        with step(str(one)):
            run = suites.run(one, node=node, found=found, options=options)
        print(times(run), flush=True)
        runs.append(run)
        _keep(runs, arguments)
    if runs:
        print(f"\n{summary(runs)}", flush=True)
    return runs


def _keep(runs: Sequence[results.Run], arguments: argparse.Namespace) -> None:
    """Write the results so far: an error in a later run does not take them."""
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    results.write(arguments.json, runs)
    if arguments.write and arguments.only:
        print("conformance: partial results (--only) are not kept", file=sys.stderr)
    elif arguments.write:
        results.write(results.KEPT / results.file_name(runs[-1]), runs[-1:])


def _status(runs: Sequence[results.Run], planned: Plan) -> int:
    cases = [case for run in runs for case in run.cases]
    if any(case.state == "failed" for case in cases):
        return 1
    if len(runs) < len(planned.runs) or any(is_open(case) for case in cases):
        return 3
    return 0 if runs else 2


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--bin", type=_directory, help="directory of the programs, searched before PATH")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="engine to run on, may be repeated (all)")
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help=f"suite, may be repeated ({', '.join(DEFAULT_SUITES)})"
    )
    parser.add_argument(
        "--group", action="append", choices=[group.name for group in GROUPS], help="group of node-e2e, may be repeated"
    )
    parser.add_argument(
        "--gates",
        action="append",
        help="feature gates of the kubelet, as A=true,B=false; empty for its defaults; may be repeated "
        f"({', '.join(gates or 'its defaults' for gates in DEFAULT_GATES)})",
    )
    parser.add_argument("--only", default="", help="cases whose name matches this regular expression")
    parser.add_argument("--minutes", type=float, default=60, help="duration of the suite churn (60)")
    parser.add_argument("--json", type=Path, default=_JSON, help=f"file for the results ({_JSON})")
    parser.add_argument("--note", default="", help="remark about the programs, stored in the results")
    parser.add_argument(
        "--nri-plugins",
        type=_directory,
        help=f"directory of NRI plugins ({', '.join(TOGETHER)}) that run during the kubelet's scenarios",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        help="run critest in parts, whose results are kept in this directory; a run with the same directory runs the "
        "cases that have failed or were not reached",
    )
    parser.add_argument("--seconds", type=float, default=3600, help="time after which no further part begins (3600)")
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the results for docs/compatibility.md: run integration.conformance.page",
    )
    return parser


def _directory(text: str) -> Path | None:
    return Path(text) if text else None


if __name__ == "__main__":
    sys.exit(main())
