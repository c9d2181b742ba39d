"""Runs iptables and ip6tables."""

import os
import shutil
from pathlib import Path

from shim.base.spawn import run_bounded

ABSENT = 1
"""Exit code of `--check` if the rule does not exist, and of most other failures."""

_SECONDS = 10.0


def iptables(command: str, verb: str, chain: str, *words: str) -> tuple[int, str]:
    """Run `command`, `iptables` or `ip6tables`; return its exit code and its error output.

    Raise FileNotFoundError if it is not installed, and OSError or ShimError as `run_bounded` does.
    """
    program = shutil.which(command)
    if program is None:
        raise FileNotFoundError(f"{command} is not installed")
    outcome = run_bounded(
        Path(program),
        arguments=("--wait", verb, chain, *words),
        environment=os.environ,
        stdin=b"",
        timeout=_SECONDS,
        what=f"{command} {verb} in chain {chain}",
    )
    return outcome.returncode, outcome.stderr.decode(errors="replace").strip()
