import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from shim.domain.ids import SandboxId
from shim.streaming.admission import FULL, LOG_SECONDS, Admission, Refusals, Slots
from shim.streaming.tokens import PortForwardTask
from tests.clock import Clock
from tests.streaming.client import task


def test_sessions_are_limited_for_each_container_or_pod_and_in_total() -> None:
    admission = Admission(most=3, most_each=2)
    pod = PortForwardTask(sandbox_id=SandboxId("p"), ports=())
    found = [admission.enter(task()), admission.enter(task()), admission.enter(task()), admission.enter(pod)]

    assert [bool(why) for why in found] == [False, False, True, False]
    assert "2 streaming sessions of c are open" in found[2]
    assert "streaming_max_sessions allows" in admission.enter(pod)
    admission.leave(task())
    assert admission.enter(pod) == ""


def test_ended_sessions_are_forgotten() -> None:
    admission = Admission(most=3, most_each=2)
    for number in range(100):
        one = task(container_id=str(number))
        assert admission.enter(one) == ""
        admission.leave(one)
    for number in range(100):
        assert admission.enter(task(container_id="full")) == "" or number >= 2

    assert len(admission._open) == 1


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


def test_the_oldest_connection_is_closed_for_a_new_connection(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(2)
    taken = [slots.take(near) for near, _ in pairs]

    assert [full for _, full in taken] == [False, False, True]
    assert [ended(far) for _, far in pairs] == [True, False, False]
    assert [slots.free(slot) for slot, _ in taken] == [False, True, True]


def test_a_connection_that_has_left_its_slot_is_not_closed(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(2)
    first, _ = slots.take(pairs[0][0])
    assert slots.free(first)
    assert not slots.free(first)
    assert [slots.take(near)[1] for near, _ in pairs[1:]] == [False, False]
    assert not any(ended(far) for _, far in pairs)


def test_a_connection_closed_during_the_tls_setup_ends(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    slots = Slots(1)
    near, far = pairs[0]
    slot, _ = slots.take(near)
    over = socket.socket(fileno=near.detach())
    with over:
        assert slots.take(pairs[1][0])[1]
        assert not ended(far)
        slots.secured(slot, over)
        assert ended(far)


def test_refusals_are_logged_periodically_with_their_number(clock: Clock) -> None:
    refusals = Refusals("streaming", clock=clock)
    with capture_logs() as lines:
        for _ in range(500):
            refusals.note(FULL, text="why")
        clock.now += LOG_SECONDS
        refusals.note("404", text="another")

    assert [(line["count"], line["last"]) for line in lines] == [(1, "full"), (500, "404")]
