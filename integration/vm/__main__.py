"""Run a command on this machine's files, under a kernel whose control groups are of version 2.

python -m integration.vm .venv/bin/python -m integration.node run .venv/bin/pytest integration/stats --engine 28

Nothing it writes stays, but what it writes to the directory of `--share`: /run/vm, and for what is isolated, which has
a /run of its own, /disk/share. Without hardware to help, everything takes ten to thirty times as long, so tests that
wait for something may give up too soon.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from integration.node.commands import NodeError
from integration.vm.machine import run_in_vm


def main() -> int:
    """Run it, and return its exit status."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="pydockershim-vm-") as scratch:
        share = arguments.share or Path(scratch, "share")
        share.mkdir(exist_ok=True)
        try:
            return run_in_vm(
                arguments.command,
                scratch=Path(scratch),
                share=share.resolve(),
                systemd=arguments.systemd,
                seconds=arguments.seconds,
            )
        except NodeError as cause:
            print(f"vm: {cause}", file=sys.stderr)
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.vm")
    parser.add_argument("--systemd", action="store_true", help="with systemd as the first process")
    parser.add_argument("--share", type=Path, help="directory that is /run/vm and /disk/share inside, and stays")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which it is ended (%(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
