"""Runs of iptables and ip6tables."""

import os
import shutil
from pathlib import Path

from shim.base.spawn import run_bounded

ABSENT = 1
"""Exit code of `--check` for a rule that is not there, and of everything else that has failed."""

_SECONDS = 10.0


def iptables(command: str, verb: str, chain: str, *words: str) -> tuple[int, str]:
    """Run `iptables` or `ip6tables`; return its exit code and what it says of a failure.

    FileNotFoundError where it is not installed; OSError, ShimError as `run_bounded`.
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
