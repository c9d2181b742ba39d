"""What is watched is looked at until it has happened or its time is up, in one thread that leaves afterwards."""

import threading

import pytest

from shim.concurrency.lookout import Lookout
from shim.errors import Unavailable
from tests.threads import no_thread_for
from tests.waits import wait_until

SECONDS = 20.0


class Seen:
    """A look that gives, or raises, what it is told to, one after the other, and notes its threads."""

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
        """Wait until there is no answer left, and then for the end of the thread that took the last one."""
        assert self.last.wait(SECONDS)
        self.threads[-1].join(SECONDS)
        assert not self.threads[-1].is_alive()
        return self.threads[-1]


def test_it_looks_until_it_has_happened_also_where_there_is_no_answer() -> None:
    seen = Seen(False, Unavailable("docker cannot be reached"), False, True)
    Lookout(pause_seconds=0.001).watch(seen, what="a test", seconds=SECONDS)
    seen.wait_last()
    assert len(seen.threads) == 4


def test_it_gives_up_but_not_before_the_first_look() -> None:
    seen = Seen(False)
    Lookout(pause_seconds=0.001).watch(seen, what="a test", seconds=0)
    seen.wait_last()


def test_a_look_that_is_broken_ends_no_other() -> None:
    lookout = Lookout(pause_seconds=0.001)
    broken, good = Seen(ZeroDivisionError("a bug")), Seen(False, False, True)
    lookout.watch(broken, what="a bug", seconds=SECONDS)
    lookout.watch(good, what="a test", seconds=SECONDS)
    broken.wait_last()
    good.wait_last()


def test_there_is_one_thread_for_all_and_a_new_one_after_it() -> None:
    lookout, together = Lookout(pause_seconds=0.001), threading.Event()
    first, second = Seen(False, True), Seen(False, True)

    def held() -> bool:
        return together.wait(SECONDS) and first()

    lookout.watch(held, what="one", seconds=SECONDS)
    lookout.watch(second, what="two", seconds=SECONDS)
    together.set()
    assert first.wait_last() is second.wait_last()

    third = Seen(True)
    lookout.watch(third, what="three", seconds=SECONDS)
    assert third.wait_last() not in first.threads
    assert third.threads[0].daemon


def test_what_there_was_no_thread_for_is_looked_at_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lookout = Lookout(pause_seconds=0.001)
    first, second = Seen(False, True), Seen(False, True)
    with monkeypatch.context() as short:
        no_thread_for("lookout", short)
        lookout.watch(first, what="one", seconds=SECONDS)
    lookout.watch(second, what="two", seconds=SECONDS)
    assert first.wait_last() is second.wait_last()


def test_of_one_name_the_last_is_watched_until_it_is_forgotten() -> None:
    lookout = Lookout(pause_seconds=0.001)
    held, leave = threading.Event(), threading.Event()

    def first() -> bool:
        held.set()
        return leave.wait(SECONDS)

    second = Seen(*[False] * 100_000)
    lookout.watch(first, what="a test", seconds=SECONDS)
    assert held.wait(SECONDS)
    lookout.watch(second, what="a test", seconds=1000)
    leave.set()
    wait_until(lambda: second.threads)
    assert lookout.watches("a test")
    lookout.forget("a test")
    lookout.forget("a test")
    assert not lookout.watches("a test")
    second.threads[0].join(SECONDS)
    assert not second.threads[0].is_alive()


def test_it_can_be_stopped() -> None:
    lookout = Lookout(pause_seconds=0.001)
    seen = Seen(*[False] * 100_000)
    lookout.watch(seen, what="a test", seconds=1000)
    wait_until(lambda: seen.threads)
    lookout.stop()
    seen.threads[0].join(SECONDS)
    assert not seen.threads[0].is_alive()
