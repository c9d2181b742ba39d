"""Runs a fuzzer for some seconds, and saves findings."""

import gc
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.accounting import RSS_GROWTH, Held, TooExpensive, costing, no_thread_fails, nothing_left, rss, traced
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Run, Target

MEASURED = 16
"""Memory is measured in one of this many rounds of mutated inputs, and for each large input."""
LARGE = 1 << 14
TOGETHER = 64
"""Large mutated inputs wait for a measured round; when this many wait, the next round is measured."""
AGAIN = 32
"""Number of inputs that are fed again at the end of a run."""
TIMES = 10
"""Repetitions of these inputs. Free lists of the interpreter fill up in the first repetitions."""
LEAK = 32
"""Bytes that each repeated input may leave, on average."""
ROUND = 25
"""Examples in a round of Hypothesis."""
MUTATIONS = 200
"""Mutated inputs between two rounds of Hypothesis."""


@dataclass
class Finding(Exception):
    """An input that violated a check."""

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
    """Counts of a run."""

    inputs: int = 0
    refused: int = 0
    """Inputs that raised a declared error."""
    slowest: float = 0.0
    rss: list[int] = field(default_factory=list)
    left: Held = field(default_factory=Held)
    """Threads and descriptors, once the run has settled."""


def replay(target: Target, data: bytes) -> None:
    """Run an input with all checks."""
    with nothing_left(), target.open() as run, traced():
        _Check(target, run, Outcome()).one(data)


def fuzz(
    target: Target,
    *,
    seed: int,
    seconds: float,
    enormous: bool = True,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Feed the corpus, with `enormous` the enormous inputs, and then mutations for some seconds. Raise Finding."""
    done = Outcome()
    with nothing_left() as left, target.open() as run:
        check = _Check(target, run, done)
        try:
            with traced():
                for data in target.corpus:
                    check.one(data)
                for make in target.enormous if enormous else ():
                    check.one(make())
            _feed(target, check, seed=seed, until=time.monotonic() + seconds, progress=progress)
        except Exception as error:
            raise Finding(target.name, seed, check.last) from error
    done.left = left()
    return done


def save(finding: Finding, directory: Path) -> None:
    """Write the input to a file for `replay`."""
    directory.mkdir(parents=True, exist_ok=True)
    finding.file = directory / f"{finding.target}-{finding.seed}"
    finding.file.write_bytes(finding.data)


class _Check:
    def __init__(self, target: Target, run: Run, done: Outcome) -> None:
        self._target = target
        self._run = run
        self._done = done
        self.last = b""

    def one(self, data: bytes) -> bool:
        """Feed an input; return whether it was accepted without an error."""
        self.last = data
        done, target = self._done, self._target
        done.inputs += 1
        measured = tracemalloc.is_tracing() or len(data) > LARGE
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
    large: list[bytes] = []
    round_number = 0
    for number in itertools.count():
        if time.monotonic() >= until:
            break
        with traced() if number % MEASURED == 0 or len(large) >= TOGETHER else nullcontext():
            _mutation_round(check, mutator, large, until=until)
        if target.strategy is not None:
            _hypothesis_round(target, check, seed=seed * 1_000_003 + round_number, until=until)
            round_number += 1
        done.rss.append(rss())
        _check_growth(check, done)
        progress(done)
    _feed_again(check, [*large, *(mutator.next() for _ in range(AGAIN))])


def _mutation_round(check: _Check, mutator: Mutator, large: list[bytes], *, until: float) -> None:
    """Feed mutated inputs. Large inputs are added to `large`, whose inputs are fed while memory is traced."""
    tracing = tracemalloc.is_tracing()
    while tracing and large:
        check.one(large.pop())
    for _ in range(MUTATIONS):
        data = mutator.next()
        if len(data) > LARGE and not tracing:
            large.append(data)
        elif check.one(data) and len(data) < LARGE:
            mutator.keep(data)
        if time.monotonic() > until:
            return


def _feed_again(check: _Check, inputs: Sequence[bytes]) -> None:
    """Feed the same inputs TIMES times: once caches have seen them, they may leave no memory."""
    held = []
    with traced():
        for _ in range(TIMES):
            for data in inputs:
                check.one(data)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    left = statistics.median(after - before for before, after in itertools.pairwise(held))
    if left > LEAK * len(inputs):
        check.last = b""  # no single one
        raise TooExpensive(f"{len(inputs)} inputs left {left:.0f} bytes of memory each time that they were fed again")


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


def _check_growth(check: _Check, done: Outcome) -> None:
    """Compare memory at the end of the first third with the end."""
    if len(done.rss) < 6:
        return
    early, late = done.rss[len(done.rss) // 3], done.rss[-1]
    if late - early > RSS_GROWTH:
        check.last = b""  # no single one
        raise TooExpensive(f"the process grew from {early >> 20} to {late >> 20} MiB over {done.inputs} inputs")
