"""Run a command on this machine's files, under an emulated kernel with cgroup v2.

python -m integration.vm .venv/bin/python -m integration.node run .venv/bin/pytest integration/stats --engine 28

All written files are discarded, except those in the directory of `--share`: inside, it is /run/vm, and for isolated
commands, which have a separate /run, /disk/share. Without hardware support everything takes ten to thirty times as
long, so tests with timeouts may fail.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from integration.node.commands import NodeError
from integration.vm.machine import KERNELS, run_in_vm


def main() -> int:
    """Run the command, and return its exit status."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="pydockershim-vm-") as scratch:
        share = arguments.share or Path(scratch, "share")
        share.mkdir(exist_ok=True)
        try:
            return run_in_vm(
                arguments.command,
                scratch=Path(scratch),
                share=share.resolve(),
                kernel_of=arguments.kernel,
                systemd=arguments.systemd,
                seconds=arguments.seconds,
            )
        except NodeError as cause:
            print(f"vm: {cause}", file=sys.stderr)
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.vm")
    parser.add_argument("--systemd", action="store_true", help="run systemd as process 1")
    parser.add_argument(
        "--share", type=Path, help="directory that is /run/vm and /disk/share inside; its files are kept"
    )
    parser.add_argument(
        "--kernel", choices=KERNELS, default="bookworm", help="Debian's kernel of this release (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit (%(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
