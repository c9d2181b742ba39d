"""A read is superseded once something newer about the same key is published."""

import threading

import pytest

from shim.domain.errors import Unavailable
from shim.view.in_flight_reads import InFlightReads, Moment, this_moment

SECOND = 10**9
NOW = Moment(wall=100 * SECOND, offset=7 * SECOND)


def test_supersede_marks_only_reads_of_its_key() -> None:
    reads = InFlightReads()
    early, other = reads.begin("a"), reads.begin("b")
    reads.supersede("a")
    late = reads.begin("a")
    assert (early.superseded, other.superseded, late.superseded) == (True, False, False)


def test_ended_reads_are_dropped() -> None:
    reads = InFlightReads()
    first, second = reads.begin("a"), reads.begin("a")
    reads.end("a", first)
    reads.supersede("a")
    assert second.superseded
    reads.end("a", second)
    reads.supersede("b")
    assert len(reads) == 0


def test_a_read_lasts_for_its_block_without_holding_the_lock() -> None:
    reads, lock = InFlightReads(), threading.Lock()

    def read_and_fail() -> None:
        with reads.reading("a", lock=lock) as read:
            with lock:
                reads.supersede("a")
            assert read.superseded
            raise Unavailable("no answer")

    with pytest.raises(Unavailable):
        read_and_fail()
    assert (len(reads), lock.locked()) == (0, False)


@pytest.mark.parametrize(
    ("stamp", "offset", "follows"),
    [
        (99 * SECOND, NOW.offset + 500, True),
        (100 * SECOND, NOW.offset, False),
        (101 * SECOND, NOW.offset, False),
        (0, NOW.offset, False),
        (99 * SECOND, NOW.offset - SECOND, False),
        (99 * SECOND, NOW.offset + SECOND, False),
    ],
    ids=["earlier", "the same", "later", "no stamp", "clock set back since", "clock set forward since"],
)
def test_a_moment_follows_earlier_stamps_unless_the_clock_was_set(stamp: int, offset: int, follows: bool) -> None:
    assert NOW.follows(stamp, now=Moment(wall=200 * SECOND, offset=offset)) is follows


def test_the_offset_between_the_clocks_is_stable() -> None:
    def together() -> bool:
        earlier = this_moment()
        return this_moment().follows(earlier.wall, now=this_moment())

    assert any(together() for _ in range(100))  # a thread may be delayed between reading the two clocks
