"""How long output waits for a client, over a real session."""

import pytest

from shim.streaming import patience, spdy
from shim.streaming.channel import Channel
from shim.streaming.patience import LeastPace, LooksByContainer, Stalled, write_patiently
from shim.streaming.transport import Session
from tests.streaming.client import SECONDS, SpdyClient, session_of


def accepted(session: Session) -> Channel:
    channel = session.next_channel(seconds=SECONDS)
    assert channel is not None
    channel.accept()
    return channel


def write_without_end(session: Session, channel: Channel, looks: LooksByContainer) -> None:
    pace = LeastPace(session, looks.of("c"), what="attach to container c")
    while True:
        write_patiently(channel, bytes(65536), pace)


@pytest.mark.parametrize("windows", [True, False])
def test_a_client_that_takes_nothing_has_stalled_and_others_are_looked_at_more_often(
    windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.05)
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        client.open(streamtype="stdout")
        if windows:
            client.ping()
        looks = LooksByContainer()
        other = looks.of("c")
        with pytest.raises(Stalled, match="attach to container c: the client has taken less than 32768 bytes"):
            write_without_end(session, accepted(session), looks)

        assert other.seconds == patience.STRICT_LOOK_SECONDS
        assert looks.of("d").seconds == 0.05
        del other
        assert looks.of("c").seconds == 0.05
