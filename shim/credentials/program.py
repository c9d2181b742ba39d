"""Runs programs that print credentials. Their output is never quoted, because it may contain secrets.

That includes standard error: a trace of a shell or an HTTP client shows tokens that the server does not know, so it
cannot redact them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shim.base.spawn import Outcome, run_bounded
from shim.domain.errors import ShimError, reason_of

TIMEOUT = 60.0
"""Time limit of a run in seconds, the same as the kubelet's."""

_REASONS = (
    *("access denied", "accessdenied", "permission denied", "unauthorized", "forbidden", "not authorized"),
    *("invalid credentials", "unable to locate credentials", "no credentials", "expired", "not logged in", "locked"),
    *("connection refused", "connection reset", "no route to host", "network is unreachable", "no such host"),
    *("name resolution", "timeout", "timed out", "deadline exceeded", "certificate", "too many requests"),
    *("no such file", "not found", "not implemented", "usage:", "unknown flag", "invalid argument", "panic"),
)
"""Phrases to search for in standard error: they help an operator, and contain no secret."""


def run_helper(
    program: Path,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stdin: bytes,
    timeout: float,
    what: str,
) -> Outcome:
    """Run a program to its end. Raise ShimError if it cannot be started, hangs or prints too much."""
    try:
        return run_bounded(
            program, arguments=arguments, environment=environment, stdin=stdin, timeout=timeout, what=what
        )
    except OSError as failure:
        raise ShimError(f"{what}: {program} cannot be started: {reason_of(failure)}") from failure


def failure_of(outcome: Outcome) -> str:
    """Return how a program failed: its status, and the known phrases in its standard error."""
    code = outcome.returncode
    status = f"exit status {code}" if code >= 0 else f"ended by signal {-code}"
    said = outcome.stderr.decode(errors="replace").lower()
    reasons = [reason for reason in _REASONS if reason in said]
    if reasons:
        return f"{status}; its standard error mentions {', '.join(reasons)}"
    return f"{status}; its standard error is not shown because it may contain secrets" if said.strip() else status
