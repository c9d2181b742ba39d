"""Runs fuzzers for some seconds, and keeps what they find."""

import itertools
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.accounting import RSS_GROWTH, Held, TooExpensive, costing, no_thread_fails, nothing_left, rss, traced
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Run, Target

MEASURED = 16
"""Of so many rounds of mutated inputs the memory of one is measured, and of each large input."""
LARGE = 1 << 14
ROUND = 25
"""Examples of Hypothesis at a time."""
MUTATIONS = 200
"""Mutated inputs between two such rounds."""


@dataclass
class Finding(Exception):
    """An input that did what it must not."""

    target: str
    seed: int
    data: bytes
    file: Path | None = None

    def __str__(self) -> str:
        return (
            f"{self.target}, seed {self.seed}: {self.__cause__!r}\n  input: {self.data[:300]!r}\n  saved: {self.file}"
        )


@dataclass
class Outcome:
    """What a run has done."""

    inputs: int = 0
    refused: int = 0
    """Inputs that ended in a declared error."""
    slowest: float = 0.0
    rss: list[int] = field(default_factory=list)
    left: Held = field(default_factory=lambda: Held(0, 0))
    """Threads and descriptors, once the run has settled."""


def replay(target: Target, data: bytes) -> None:
    """Run one input, with all that is measured."""
    with nothing_left(), target.open() as run:
        _Check(target, run, Outcome()).one(data, measured=True)


def fuzz(
    target: Target,
    *,
    seed: int,
    seconds: float,
    enormous: bool = True,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Feed a target for some seconds, after its corpus and, with `enormous`, its enormous inputs. Raise Finding."""
    done = Outcome()
    with nothing_left() as left, target.open() as run:
        check = _Check(target, run, done)
        try:
            for data in target.corpus:
                check.one(data, measured=True)
            for make in target.enormous if enormous else ():
                check.one(make(), measured=True)
            _feed(target, check, seed=seed, until=time.monotonic() + seconds, progress=progress)
        except Exception as error:
            raise Finding(target.name, seed, check.last) from error
    done.left = left()
    _check_growth(target, done, seed)
    return done


def save(finding: Finding, directory: Path) -> None:
    """Write the input to a file, which `replay` takes."""
    directory.mkdir(parents=True, exist_ok=True)
    finding.file = directory / f"{finding.target}-{finding.seed}"
    finding.file.write_bytes(finding.data)


class _Check:
    def __init__(self, target: Target, run: Run, done: Outcome) -> None:
        self._target = target
        self._run = run
        self._done = done
        self.last = b""

    def one(self, data: bytes, *, measured: bool = False) -> bool:
        """Feed one input; whether it was taken without an error."""
        self.last = data
        done, target = self._done, self._target
        done.inputs += 1
        measured = measured or tracemalloc.is_tracing() or len(data) > LARGE
        with no_thread_fails(), costing(memory=target.memory if measured else None, seconds=target.seconds):
            try:
                self._run(data)
            except target.declared:
                done.refused += 1
                return False
        return True


def _feed(target: Target, check: _Check, *, seed: int, until: float, progress: Callable[[Outcome], None]) -> None:
    done = check._done
    mutator = Mutator(target.corpus, words=target.words, longest=target.longest, seed=f"{target.name} {seed}")
    round_number = 0
    for number in itertools.count():
        if time.monotonic() >= until:
            return
        with traced() if number % MEASURED == 0 else nullcontext():
            _mutation_round(check, mutator, until=until)
        if target.strategy is not None:
            _hypothesis_round(target, check, seed=seed * 1_000_003 + round_number, until=until)
            round_number += 1
        done.rss.append(rss())
        progress(done)


def _mutation_round(check: _Check, mutator: Mutator, *, until: float) -> None:
    for _ in range(MUTATIONS):
        data = mutator.next()
        if check.one(data) and len(data) < LARGE:
            mutator.keep(data)
        if time.monotonic() > until:
            return


def _hypothesis_round(target: Target, check: _Check, *, seed: int, until: float) -> None:
    strategy = target.strategy
    if strategy is None:
        return

    @hypothesis.seed(seed)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def examples(data: bytes) -> None:
        if time.monotonic() < until:
            check.one(data)

    examples()


def _check_growth(target: Target, done: Outcome, seed: int) -> None:
    """Compare memory at the end of the first third with the end."""
    if len(done.rss) < 6:
        return
    early, late = done.rss[len(done.rss) // 3], done.rss[-1]
    if late - early > RSS_GROWTH:
        grown = TooExpensive(f"the process grew from {early >> 20} to {late >> 20} MiB over {done.inputs} inputs")
        raise Finding(target.name, seed, b"") from grown
