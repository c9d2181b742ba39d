"""Bounds single calls to the Engine, and names Docker in the error of a timeout."""

from collections.abc import Iterator
from contextlib import contextmanager

from shim.base import deadline
from shim.domain.errors import DeadlineExceeded

ADVICE = (
    "Docker hangs or is overloaded: see journalctl --unit docker, and systemctl restart docker if it does not recover"
)


@contextmanager
def answered_within(seconds: float, *, what: str) -> Iterator[None]:
    """Bound the calls to Docker in the block to `seconds`.

    Raise DeadlineExceeded, which names `what` and says that Docker did not answer. If the outer scope ends first, raise
    its error.
    """
    outer = deadline.current()
    try:
        with deadline.bound(seconds):
            yield
    except DeadlineExceeded as cause:
        outer.check(what)
        shown = round(max(seconds, 0.0), 1 if seconds >= 1 else 2)
        raise DeadlineExceeded(f"{what}: Docker did not answer within {shown:g} s; {ADVICE}") from cause
