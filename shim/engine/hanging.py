"""Bounds on single calls to the Engine, and the error of a call that reaches its bound."""

from collections.abc import Iterator
from contextlib import contextmanager

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded

ADVICE = (
    "docker hangs or is overloaded: see journalctl --unit docker, and systemctl restart docker if it does not recover"
)


@contextmanager
def answered_within(seconds: float, *, what: str) -> Iterator[None]:
    """Bound the calls to Docker in the block to `seconds`.

    The DeadlineExceeded after that time names `what` and reports that Docker did not answer. An end of the outer scope,
    which is the client's, is reported as such.
    """
    outer = deadline.current()
    try:
        with deadline.bound(seconds):
            yield
    except DeadlineExceeded as cause:
        outer.check(what)
        shown = round(max(seconds, 0.0), 1 if seconds >= 1 else 2)
        raise DeadlineExceeded(f"{what}: docker did not answer within {shown:g} s; {ADVICE}") from cause
