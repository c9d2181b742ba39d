"""A dump shows the state however stuck the server is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from structlog.testing import capture_logs

from shim.base.locks import KeyedLocks
from shim.daemon import state_dump
from shim.daemon.state_dump import StateDump


@contextmanager
def waiting(count: int, name: str) -> Iterator[None]:
    """Keep `count` threads in the same place inside the block."""
    release, arrived = threading.Event(), threading.Semaphore(0)

    def wait_for_release() -> None:
        arrived.release()
        release.wait()

    threads = [threading.Thread(target=wait_for_release, name=f"{name}-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        arrived.acquire()
    try:
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join()


def dumped(dump: StateDump) -> list[dict[str, object]]:
    with capture_logs() as lines:
        dump.write("a test")
    return [dict(line) for line in lines]


def stacks_of(lines: list[dict[str, object]], name: str) -> list[dict[str, object]]:
    return [line for line in lines if line["event"] == "stack" and name in str(line["names"])]


def test_a_dump_begins_and_ends_with_its_reason() -> None:
    lines = dumped(StateDump())

    assert (lines[0]["event"], lines[0]["reason"]) == ("dumping state", "a test")
    assert (lines[-1]["event"], lines[-1]["reason"]) == ("state dumped", "a test")


def test_threads_with_the_same_stack_share_a_line() -> None:
    with waiting(30, "together"):
        found = stacks_of(dumped(StateDump()), "together-")

    shown = [line for line in found if "wait_for_release" in str(line["frames"])]
    # A thread that has just started is on another line of Event.wait for a moment.
    assert sum(int(str(line["threads"])) for line in shown) == 30
    assert all(len(line["names"]) <= state_dump.SHOWN_NAMES for line in shown if isinstance(line["names"], list))


def test_deep_stack_is_cut_at_its_outer_end() -> None:
    def dive(depth: int) -> list[dict[str, object]]:
        return dive(depth - 1) if depth else dumped(StateDump())

    [line] = [each for each in dive(100) if "dive" in str(each.get("frames"))]

    assert isinstance(line["frames"], list)
    assert len(line["frames"]) == state_dump.SHOWN_FRAMES


def test_source_rows_are_written() -> None:
    dump, locks = StateDump(), KeyedLocks()
    dump.add("locks", locks.rows)

    with locks.hold(("sandbox", "a")):
        lines = dumped(dump)

    [row] = [line for line in lines if line["event"] == "state"]
    assert (row["part"], row["lock"], row["waiting"]) == ("locks", "('sandbox', 'a')", 0)
    assert row["thread"] == threading.current_thread().name


def test_source_with_many_rows_is_cut() -> None:
    dump = StateDump()
    dump.add("crowd", lambda: [{"number": number} for number in range(1000)])

    lines = dumped(dump)

    assert len([line for line in lines if line["event"] == "state"]) == state_dump.SHOWN_ROWS
    assert [line["rows"] for line in lines if line["event"] == "state has more rows"] == [1000 - state_dump.SHOWN_ROWS]


def test_stuck_source_does_not_hide_others() -> None:
    dump, lock = StateDump(source_seconds=0.05), threading.Lock()

    def stuck() -> list[dict[str, object]]:
        with lock:
            return []

    dump.add("stuck", stuck)
    dump.add("fine", lambda: [{"works": True}])

    with lock:
        lines = dumped(dump)

    assert [line["part"] for line in lines if line["event"] == "part of the server is stuck"] == ["stuck"]
    assert [line["part"] for line in lines if line["event"] == "state"] == ["fine"]


def test_failing_source_does_not_hide_others() -> None:
    dump = StateDump()

    def broken() -> list[dict[str, object]]:
        raise ZeroDivisionError

    dump.add("broken", broken)
    dump.add("fine", lambda: [{"works": True}])

    lines = dumped(dump)

    assert [line["part"] for line in lines if line["event"] == "cannot dump part of the server"] == ["broken"]
    assert [line["part"] for line in lines if line["event"] == "state"] == ["fine"]
