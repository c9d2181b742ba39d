import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from shim.streaming.slots import FULL, LOG_SECONDS, Refusals, Slots
from tests.clock import Clock


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(3)]
        for one, other in made:
            stack.enter_context(one)
            stack.enter_context(other)
            other.settimeout(0.05)
        yield made


def ended(far: socket.socket) -> bool:
    try:
        return far.recv(1) == b""
    except TimeoutError:
        return False


def test_the_oldest_makes_room(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(2)
    taken = [slots.take(near) for near, _ in pairs]

    assert [full for _, full in taken] == [False, False, True]
    assert [ended(far) for _, far in pairs] == [True, False, False]
    assert [slots.free(slot) for slot, _ in taken] == [False, True, True]


def test_one_that_has_left_is_not_cut(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(2)
    first, _ = slots.take(pairs[0][0])
    assert slots.free(first)
    assert not slots.free(first)
    assert [slots.take(near)[1] for near, _ in pairs[1:]] == [False, False]
    assert not any(ended(far) for _, far in pairs)


def test_one_that_is_cut_while_tls_takes_it_over_ends_too(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(1)
    near, far = pairs[0]
    slot, _ = slots.take(near)
    over = socket.socket(fileno=near.detach())
    with over:
        assert slots.take(pairs[1][0])[1]
        assert not ended(far)
        slots.secured(slot, over)
        assert ended(far)


def test_refusals_have_one_line_in_some_seconds_with_their_number(clock: Clock) -> None:
    refusals = Refusals("streaming", clock=clock)
    with capture_logs() as lines:
        for _ in range(500):
            refusals.note(FULL, text="why")
        clock.now += LOG_SECONDS
        refusals.note("404", text="another")

    assert [(line["count"], line["last"]) for line in lines] == [(1, "full"), (500, "404")]
