"""Checks are polled in a single thread until they are true or time out."""

import threading
import time
from functools import partial

import pytest

from shim.base import deferred_checks as module
from shim.base.deferred_checks import FULL_CYCLE_ROUNDS, MIN_ROUND_SIZE, DeferredChecks
from shim.domain.errors import DeadlineExceeded, Unavailable
from tests.threads import no_thread_for
from tests.waits import wait_until

SECONDS = 20.0


class Seen:
    """A check that returns or raises the given results in order, and records its threads."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.threads: list[threading.Thread] = []
        self.last = threading.Event()

    def __call__(self) -> bool:
        self.threads.append(threading.current_thread())
        answer = self.answers.pop(0)
        if not self.answers:
            self.last.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_last(self) -> threading.Thread:
        """Wait until all results are used, and then for the end of the polling thread."""
        assert self.last.wait(SECONDS)
        self.threads[-1].join(SECONDS)
        assert not self.threads[-1].is_alive()
        return self.threads[-1]


def test_a_check_is_polled_until_true_also_while_docker_does_not_answer() -> None:
    seen = Seen(False, Unavailable("docker cannot be reached"), False, True)
    DeferredChecks(pause_seconds=0.001).add(seen, what="a test", seconds=SECONDS)
    seen.wait_last()
    assert len(seen.threads) == 4


def test_a_check_runs_at_least_once_before_it_times_out() -> None:
    seen = Seen(False)
    DeferredChecks(pause_seconds=0.001).add(seen, what="a test", seconds=0)
    seen.wait_last()


def test_a_check_that_raises_does_not_end_the_others() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    broken, good = Seen(ZeroDivisionError("a bug")), Seen(False, False, True)
    deferred_checks.add(broken, what="a bug", seconds=SECONDS)
    deferred_checks.add(good, what="a test", seconds=SECONDS)
    broken.wait_last()
    good.wait_last()


def test_all_checks_share_a_thread_that_ends_with_the_last() -> None:
    deferred_checks, together = DeferredChecks(pause_seconds=0.001), threading.Event()
    first, second = Seen(False, True), Seen(False, True)

    def held() -> bool:
        return together.wait(SECONDS) and first()

    deferred_checks.add(held, what="one", seconds=SECONDS)
    deferred_checks.add(second, what="two", seconds=SECONDS)
    together.set()
    assert first.wait_last() is second.wait_last()

    third = Seen(True)
    deferred_checks.add(third, what="three", seconds=SECONDS)
    assert third.wait_last() not in first.threads
    assert third.threads[0].daemon


def test_a_check_whose_thread_cannot_start_runs_with_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    first, second = Seen(False, True), Seen(False, True)
    with monkeypatch.context() as short:
        no_thread_for("deferred-checks", short)
        deferred_checks.add(first, what="one", seconds=SECONDS)
    deferred_checks.add(second, what="two", seconds=SECONDS)
    assert first.wait_last() is second.wait_last()


def test_a_check_replaces_the_earlier_check_of_its_name() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    held, leave = threading.Event(), threading.Event()

    def first() -> bool:
        held.set()
        return leave.wait(SECONDS)

    second = Seen(*[False] * 100_000)
    deferred_checks.add(first, what="a test", seconds=SECONDS)
    assert held.wait(SECONDS)
    deferred_checks.add(second, what="a test", seconds=1000)
    leave.set()
    wait_until(lambda: second.threads)
    assert deferred_checks.is_pending("a test")
    deferred_checks.forget("a test")
    deferred_checks.forget("a test")
    assert not deferred_checks.is_pending("a test")
    second.threads[0].join(SECONDS)
    assert not second.threads[0].is_alive()


def test_stop_ends_the_polling() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    seen = Seen(*[False] * 100_000)
    deferred_checks.add(seen, what="a test", seconds=1000)
    wait_until(lambda: seen.threads)
    deferred_checks.stop()
    seen.threads[0].join(SECONDS)
    assert not seen.threads[0].is_alive()


class Rounds:
    """Counts rounds with a check that reads memory, which runs first in each round."""

    def __init__(self, deferred_checks: DeferredChecks) -> None:
        self.done: list[list[int]] = []
        """The numbers of the checks that ran in each round."""
        deferred_checks.add(self._begin, what="the rounds", seconds=1000, asks_docker=False)

    def _begin(self) -> bool:
        self.done.append([])
        return False

    def note(self, number: int) -> None:
        self.done[-1].append(number)


def test_a_round_ends_when_docker_does_not_answer_and_the_next_continues_there() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    rounds = Rounds(deferred_checks)

    def stuck(number: int) -> bool:
        rounds.note(number)
        raise DeadlineExceeded("inspect exec: not within 2 s")

    for number in range(5):
        deferred_checks.add(partial(stuck, number), what=f"stuck {number}", seconds=SECONDS)
    wait_until(lambda: len(rounds.done) > 15)
    deferred_checks.stop()

    turns = [numbers for numbers in rounds.done[:-1] if numbers]
    assert {len(numbers) for numbers in turns} == {1}
    assert [numbers[0] for numbers in turns[:10]] == [0, 1, 2, 3, 4] * 2


def test_a_round_runs_a_part_of_many_checks() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    rounds = Rounds(deferred_checks)

    def open_check(number: int) -> bool:
        rounds.note(number)
        return False

    gate = threading.Event()  # keeps the first round waiting until all checks are added
    deferred_checks.add(lambda: gate.wait(SECONDS), what="the beginning", seconds=SECONDS, asks_docker=False)
    for number in range(500):
        deferred_checks.add(partial(open_check, number), what=f"open {number}", seconds=1000)
    gate.set()
    wait_until(lambda: len(rounds.done) > 40)
    deferred_checks.stop()

    begun = next(index for index, numbers in enumerate(rounds.done) if numbers)
    assert max(map(len, rounds.done)) == MIN_ROUND_SIZE
    assert {number for numbers in rounds.done[begun:][:FULL_CYCLE_ROUNDS] for number in numbers} == set(range(500))


def test_every_check_runs_within_the_full_cycle_rounds() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    seen: set[int] = set()
    rounds = Rounds(deferred_checks)

    def open_check(number: int) -> bool:
        rounds.note(number)
        seen.add(number)
        return False

    for number in range(3000):
        deferred_checks.add(partial(open_check, number), what=f"open {number}", seconds=1000)
    before = len(rounds.done)
    wait_until(lambda: len(seen) == 3000)
    assert len(rounds.done) - before < 2 * FULL_CYCLE_ROUNDS
    deferred_checks.stop()


def test_the_timeout_restarts_when_docker_answers_again() -> None:
    deferred_checks, given = DeferredChecks(pause_seconds=0.001), 0.2
    answers, outcomes = threading.Event(), []
    began = time.monotonic()

    def check() -> bool:
        outcomes.append(answers.is_set())
        if not answers.is_set():
            raise Unavailable("docker cannot be reached")
        return False

    deferred_checks.add(check, what="a test", seconds=given)
    wait_until(lambda: time.monotonic() > began + 2 * given)
    assert deferred_checks.is_pending("a test")
    answers.set()
    again = time.monotonic()
    wait_until(lambda: not deferred_checks.is_pending("a test"))
    assert time.monotonic() >= again + given
    assert outcomes.count(True) > 1


def test_a_check_times_out_if_it_alone_gets_no_answer() -> None:
    deferred_checks = DeferredChecks(pause_seconds=0.001)

    def stuck() -> bool:
        raise DeadlineExceeded("inspect exec: not within 2 s")

    deferred_checks.add(lambda: False, what="good", seconds=1000)
    deferred_checks.add(stuck, what="stuck", seconds=0.05)
    wait_until(lambda: not deferred_checks.is_pending("stuck"))
    assert deferred_checks.is_pending("good")
    deferred_checks.stop()


def test_slow_checks_do_not_delay_checks_that_read_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_SECONDS", 0.05)
    deferred_checks = DeferredChecks(pause_seconds=0.001)
    rounds, never = Rounds(deferred_checks), threading.Event()

    def slow(number: int) -> bool:
        rounds.note(number)
        return never.wait(0.03)

    for number in range(20):
        deferred_checks.add(partial(slow, number), what=f"slow {number}", seconds=1000)
    wait_until(lambda: {number for numbers in rounds.done for number in numbers} == set(range(20)))
    deferred_checks.stop()

    assert max(map(len, rounds.done)) <= 2
