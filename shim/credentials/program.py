"""Runs of programs that know credentials. What they print is never quoted: it may be a secret."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shim.errors import ShimError
from shim.spawn import Outcome, run_bounded

TIMEOUT = 60.0
"""Seconds one run may take: the kubelet's bound."""

_SAID_CHARACTERS = 300
"""How much of standard error goes into a message."""
_SECRET = 4
"""Characters of the shortest value that is blanked out; shorter ones would take innocent words with them."""


def ask(
    program: Path,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdin: bytes,
    timeout: float,
    what: str,
) -> Outcome:
    """Run a program to its end. ShimError when it cannot be started, hangs or prints without end."""
    try:
        return run_bounded(
            program, arguments=arguments, environment=environment, stdin=stdin, timeout=timeout, what=what
        )
    except OSError as failure:
        raise ShimError(f"{what}: {program} cannot be started: {failure.strerror}") from failure


def failure_of(outcome: Outcome, *, secrets: Mapping[str, str]) -> str:
    """Say how a program failed: its status and the last line of its standard error, without values of `secrets`."""
    code = outcome.returncode
    status = f"exit status {code}" if code >= 0 else f"ended by signal {-code}"
    lines = outcome.stderr.decode(errors="backslashreplace").strip().splitlines()
    said = lines[-1] if lines else ""
    for secret in secrets.values():
        if len(secret) >= _SECRET:
            said = said.replace(secret, "***")
    return f"{status}: {said[:_SAID_CHARACTERS]}" if said else status
