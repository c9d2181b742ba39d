"""Runs of programs that know credentials. What they print is never quoted: it may be a secret.

That holds for their standard error, too. A trace of a shell or of an HTTP client shows tokens there that nobody gave
the program, so there is nothing by which they could be told from the rest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shim.base.spawn import Outcome, run_bounded
from shim.domain.errors import ShimError, reason_of

TIMEOUT = 60.0
"""Seconds one run may take: the kubelet's bound."""

_REASONS = (
    *("access denied", "accessdenied", "permission denied", "unauthorized", "forbidden", "not authorized"),
    *("invalid credentials", "unable to locate credentials", "no credentials", "expired", "not logged in", "locked"),
    *("connection refused", "connection reset", "no route to host", "network is unreachable", "no such host"),
    *("name resolution", "timeout", "timed out", "deadline exceeded", "certificate", "too many requests"),
    *("no such file", "not found", "not implemented", "usage:", "unknown flag", "invalid argument", "panic"),
)
"""Words of our own that are looked for in standard error: they tell an operator where to look, and no secret."""


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
        raise ShimError(f"{what}: {program} cannot be started: {reason_of(failure)}") from failure


def failure_of(outcome: Outcome) -> str:
    """Say how a program failed: its status, and which of the usual reasons its standard error speaks of."""
    code = outcome.returncode
    status = f"exit status {code}" if code >= 0 else f"ended by signal {-code}"
    said = outcome.stderr.decode(errors="replace").lower()
    reasons = [reason for reason in _REASONS if reason in said]
    if reasons:
        return f"{status}; its standard error speaks of {', '.join(reasons)}"
    return f"{status}; its standard error is not shown since it may hold secrets" if said.strip() else status
