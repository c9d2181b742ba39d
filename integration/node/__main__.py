"""Set up a node from the command line.

python -m integration.node prepare               fetch everything into the cache
python -m integration.node engines               also fetch the engines that only some runs need
python -m integration.node run [--disk] [--systemd] COMMAND
                                                 run a command in isolation with the node's tools
python -m integration.node host COMMAND          run a command on this machine, after setting up Docker and CNI
python -m integration.node release               remove the leftovers of a killed `host`
"""

import argparse
import os
import sys
from contextlib import redirect_stdout

from integration.node.commands import NodeError, run_foreground
from integration.node.host import prepared_host, release
from integration.node.isolation import run_isolated
from integration.node.packages import ON_DEMAND, ensure_unpacked
from integration.node.prepare import prepare


def main() -> int:
    """Run one of the commands and return the exit status."""
    try:
        return _carry_out(_parser().parse_args())
    except NodeError as cause:
        print(f"node: {cause}", file=sys.stderr)
        return 1


def _carry_out(arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise NodeError("setting up a node needs root")
    match arguments.verb:
        case "prepare":
            prepare()
        case "engines":
            for bundle in ON_DEMAND.values():
                ensure_unpacked(bundle)
        case "run":
            with redirect_stdout(sys.stderr):  # standard output belongs to the command, and may be a protocol
                node = prepare(driver="systemd" if arguments.systemd else "cgroupfs")
            return run_isolated(arguments.command, node=node, on_disk=arguments.disk)
        case "host":
            with prepared_host():
                return run_foreground(arguments.command)
        case "release":
            release()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.node", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare")
    verbs.add_parser("engines")
    verbs.add_parser("release")
    isolated = verbs.add_parser("run")
    isolated.add_argument("--disk", action="store_true", help="engine data on disk, for measurements")
    isolated.add_argument(
        "--systemd", action="store_true", help="let this machine's systemd create cgroups; no PID namespace"
    )
    for verb in (isolated, verbs.add_parser("host")):
        verb.add_argument("command", nargs=argparse.REMAINDER, help="program and its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
