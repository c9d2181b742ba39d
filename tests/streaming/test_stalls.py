"""Stalled clients, over a real session."""

import pytest

from shim.streaming import spdy, stalls
from shim.streaming.channel import Channel
from shim.streaming.session import Session
from shim.streaming.stalls import CheckIntervals, MinimumRate, Stalled, write_with_policy
from tests.streaming.client import SECONDS, SpdyClient, session_of


def accepted(session: Session) -> Channel:
    channel = session.next_channel(seconds=SECONDS)
    assert channel is not None
    channel.accept()
    return channel


def write_forever(session: Session, channel: Channel, intervals: CheckIntervals) -> None:
    policy = MinimumRate(session, intervals.of("c"), what="attach to container c")
    while True:
        write_with_policy(channel, bytes(65536), policy)


@pytest.mark.parametrize("windows", [True, False])
def test_a_client_that_does_not_read_stalls_and_others_are_checked_more_often(
    windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "CHECK_SECONDS", 0.05)
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        client.open(streamtype="stdout")
        if windows:
            client.ping()
        intervals = CheckIntervals()
        other = intervals.of("c")
        with pytest.raises(Stalled, match="attach to container c: the client has taken less than 32768 bytes"):
            write_forever(session, accepted(session), intervals)

        assert other.seconds == stalls.STRICT_CHECK_SECONDS
        assert intervals.of("d").seconds == 0.05
        del other
        assert intervals.of("c").seconds == 0.05
