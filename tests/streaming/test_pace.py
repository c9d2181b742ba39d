import threading

from shim.streaming.pace import LONG, MAX_READ, MIN_READ, SLOW, Pace, Turns
from tests.waits import wait_until

SECONDS = 20.0


def test_the_first_read_is_small_and_fast_reads_grow() -> None:
    pace = Pace()
    sizes = []
    for _ in range(6):
        sizes.append(pace.size)
        pace.note(SLOW / 2)

    assert sizes == [MIN_READ, 2 * MIN_READ, 4 * MIN_READ, 8 * MIN_READ, MAX_READ, MAX_READ]


def test_slow_reads_shrink_and_stay_small() -> None:
    pace = Pace()
    for _ in range(6):
        pace.note(0)
    pace.note(LONG * 2)
    assert pace.size == MAX_READ // 2
    pace.note(SLOW)
    assert pace.size == MAX_READ // 2
    for _ in range(9):
        pace.note(LONG * 2)
    assert pace.size == MIN_READ


def spend(pace: Pace, seconds: float) -> None:
    """Do a read that takes `seconds` of processor time."""
    began = pace.begin()
    pace.end(began - seconds)


def test_only_slow_sessions_take_turns() -> None:
    turns = Turns()
    slow, quick = Pace(turns), Pace(turns)
    spend(slow, SLOW)
    spend(quick, 0)  # the first read takes a turn
    turns.take()
    done = threading.Event()

    def wait() -> None:
        spend(slow, 0)
        done.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    spend(quick, 0)
    assert not done.wait(0.05)

    turns.give()
    assert done.wait(SECONDS)
    waiting.join()
    turns.take()  # the slow session has returned its turn
    spend(slow, 0)  # it is fast again, so it takes no turn


def test_turns_are_taken_in_order() -> None:
    turns = Turns()
    turns.take()
    order: list[int] = []

    def work(number: int) -> None:
        turns.take()
        order.append(number)
        turns.give()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda count=number + 1: len(turns._waiting) == count)  # type: ignore[misc]
    turns.give()
    for thread in threads:
        thread.join(SECONDS)

    assert order == [0, 1, 2, 3, 4]
