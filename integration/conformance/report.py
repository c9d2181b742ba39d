"""Terminal output: the progress of a run, and the table at its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from integration.conformance.results import Case, Run, by_reason

_EVERY_SECONDS = 10.0


@dataclass(slots=True)
class Progress:
    """Prints progress at most every ten seconds."""

    title: str
    now: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _said: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self._said = self.now()

    def __call__(self, line: str) -> None:
        """Print the line, unless another was printed just before."""
        now = self.now()
        if now - self._said >= _EVERY_SECONDS:
            self._said = now
            print(f"    ... {self.title}: {line} ({now - self._started:.0f} s)", flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns, with the first row as heading and numbers aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_cell(text, width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(text: str, width: int) -> str:
    return text.rjust(width) if text.replace(".", "").isdigit() else text.ljust(width)


def summary(runs: Sequence[Run]) -> str:
    """Return a table of the runs, the failures, and the expected failures and skipped cases by reason."""
    rows = [("suite", "version", "engine", "gates", "passed", "failed", "expected", "skipped", "seconds")]
    for run in runs:
        counts = [str(run.count(state)) for state in ("passed", "failed", "expected", "skipped")]
        where = (_suite(run), run.version, f"{run.engine} ({run.docker})", run.gates or "default")
        rows.append((*where, counts[0], counts[1], counts[2], counts[3], f"{run.seconds:.1f}"))
    lines = [table(rows)]
    for state in ("expected", "skipped"):
        lines += [f"{state}, {len(cases)}: {_first_line(reason)}" for reason, cases in by_reason(runs, state).items()]
    lines += [_failure(run, case) for run in runs for case in run.cases if case.state == "failed"]
    return "\n".join(lines)


def times(run: Run) -> str:
    """Return a table of the cases of a run with their times."""
    return table(
        [("case", "result", "seconds"), *((case.name, case.state, f"{case.seconds:.1f}") for case in run.cases)]
    )


def _suite(run: Run) -> str:
    return f"{run.suite} {run.group}".strip()


def _failure(run: Run, case: Case) -> str:
    where = " ".join(word for word in (_suite(run), run.engine, run.gates) if word)
    return f"FAILED {where}: {case.name}\n{_indented(case.reason)}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
