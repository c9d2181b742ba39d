"""Backlogs for slow clients, over a real session."""

import threading

import pytest

from shim.domain.errors import Cancelled
from shim.streaming import spdy
from shim.streaming.backlog import BACKLOG_LIMIT, BACKLOGS_LIMIT, Backlog, Room
from shim.streaming.channel import Channel
from shim.streaming.session import Session
from shim.streaming.stalls import Stalled
from tests.streaming.client import SECONDS, SpdyClient, session_of
from tests.waits import wait_until

PIECE = bytes(range(256)) * 256


def accepted(session: Session) -> Channel:
    channel = session.next_channel(seconds=SECONDS)
    assert channel is not None
    channel.accept()
    return channel


def free(room: Room) -> int:
    """Return how much of the budget is left."""
    return room._left


def puts_until_stalled(waiting: Backlog, channel: Channel) -> int:
    for count in range(2 * BACKLOGS_LIMIT // len(PIECE)):
        try:
            waiting.put(channel, PIECE)
        except Stalled as error:
            assert "there is no room for more" in str(error)  # noqa: PT017
            return count
    raise AssertionError("there is no bound")


def test_output_is_delivered_in_order_and_its_memory_is_returned() -> None:
    room = Room()
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        one, two = client.open(streamtype="stdout"), client.open(streamtype="stderr")
        channels = accepted(session), accepted(session)
        waiting = Backlog(room)
        for _ in range(20):
            for channel in channels:
                waiting.put(channel, PIECE)
        assert free(room) < BACKLOGS_LIMIT
        finishing = threading.Thread(target=waiting.finish)
        finishing.start()
        while sum(map(len, client.received.values())) < 40 * len(PIECE):
            client.read_some()
        finishing.join(SECONDS)

        assert client.received == {one: 20 * PIECE, two: 20 * PIECE}
    assert free(room) == BACKLOGS_LIMIT


def test_the_output_that_waits_for_a_client_is_bounded() -> None:
    room = Room()
    with session_of(spdy.Connection()) as (session, far):
        SpdyClient(far).open(streamtype="stdout")
        channel, waiting = accepted(session), Backlog(room)
        count = len(PIECE) * puts_until_stalled(waiting, channel)

        assert BACKLOG_LIMIT - len(PIECE) <= count + 1024 <= BACKLOG_LIMIT + 4 * len(PIECE)


def test_the_output_that_waits_for_all_clients_is_bounded() -> None:
    room = Room()
    assert room.take(BACKLOGS_LIMIT - 3 * len(PIECE))
    with session_of(spdy.Connection()) as (session, far):
        SpdyClient(far).open(streamtype="stdout")
        channel = accepted(session)
        one, other = Backlog(room), Backlog(room)
        one.put(channel, PIECE)
        other.put(channel, PIECE)
        assert puts_until_stalled(one, channel) < 8  # some bytes fit in the client's window
        one.fail(Stalled("given up"))
        other.put(channel, PIECE)


def test_the_backlog_of_a_disconnected_client_is_dropped() -> None:
    room = Room()
    with session_of(spdy.Connection()) as (session, far):
        SpdyClient(far).open(streamtype="stdout")
        channel, waiting = accepted(session), Backlog(room)
        for _ in range(20):
            waiting.put(channel, PIECE)
        far.close()

        wait_until(lambda: free(room) == BACKLOGS_LIMIT)
        with pytest.raises(Cancelled):
            waiting.finish()
        with pytest.raises(Cancelled):
            waiting.put(channel, PIECE)
