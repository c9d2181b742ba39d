"""Steps of an installation: each is announced and then done, or with `--dry-run` only announced."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A change; without `do` only a remark."""

    words: str
    do: Callable[[], None] | None = None


def run_steps(steps: Iterable[Step], *, announce: Callable[[str], None], dry: bool) -> None:
    """Announce and do each step; stop at the first failure."""
    for step in steps:
        announce(step.words)
        if step.do is not None and not dry:
            step.do()
