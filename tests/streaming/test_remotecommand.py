import json

import pytest

from shim.base.deadline import LONGEST
from shim.domain.errors import Cancelled, DeadlineExceeded, InvalidArgument
from shim.streaming import remotecommand as rc
from shim.streaming import spdy
from tests.streaming.client import SpdyClient, session_of, task

V4, V2, V1 = "v4.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"


@pytest.mark.parametrize(
    ("asked", "protocol", "expected"),
    [
        ({}, V4, {"stdout", "stderr", "error"}),
        ({"stdin": True, "stderr": False, "tty": True}, V4, {"stdin", "stdout", "error", "resize"}),
        ({"stdin": True, "stderr": False, "tty": True}, V2, {"stdin", "stdout", "error"}),
        ({"stderr": False, "tty": True}, "v5.channel.k8s.io", {"stdout", "error", "resize"}),
    ],
    ids=["plain", "terminal", "before resize", "v5"],
)
def test_the_request_and_the_protocol_determine_the_streams(
    asked: dict[str, bool], protocol: str, expected: set[str]
) -> None:
    assert set(rc.expected_streams(task(**asked), protocol=protocol)) == expected
    assert {dict(it)["streamtype"] for it in rc.channel_headers(task(**asked), protocol=protocol).values()} == expected


@pytest.mark.parametrize("protocol", [V4, "v5.channel.k8s.io", "v4.base64.channel.k8s.io"])
def test_the_status_is_json_since_v4(protocol: str) -> None:
    failed = json.loads(rc.status_from_exit_code(3, protocol=protocol))

    assert json.loads(rc.status_from_exit_code(0, protocol=protocol)) == {"metadata": {}, "status": "Success"}
    assert (failed["status"], failed["reason"]) == ("Failure", "NonZeroExitCode")
    assert failed["details"] == {"causes": [{"reason": "ExitCode", "message": "3"}]}
    broken = json.loads(rc.status_from_failure("no container", protocol=protocol))
    assert (broken["status"], broken["reason"], broken["message"]) == ("Failure", "InternalError", "no container")


@pytest.mark.parametrize("protocol", ["v3.channel.k8s.io", V2, V1, ""])
def test_the_status_before_v4_is_text_or_empty(protocol: str) -> None:
    assert rc.status_from_exit_code(0, protocol=protocol) == b""
    assert rc.status_from_exit_code(3, protocol=protocol).endswith(b"code: 3")
    assert rc.status_from_failure("no container", protocol=protocol) == b"no container"


def test_wait_streams_accepts_all_streams() -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
        streams = rc.wait_streams(session, task(), protocol=V4, seconds=10)
        assert streams.stdout is not None
        streams.stdout.write(b"hi")
        streams.stdout.finish()
        client.read_until_ended(opened["stdout"])

        assert client.replied >= {opened["stdout"], opened["error"]}
        assert client.received == {opened["stdout"]: b"hi"}
        assert (streams.stdin, streams.resize) == (None, None)


def test_the_error_names_a_stream_that_is_not_opened_in_time() -> None:
    with session_of(spdy.Connection()) as (session, far):
        SpdyClient(far).open(streamtype="error")

        with pytest.raises(DeadlineExceeded, match="did not open stderr, stdout within"):
            rc.wait_streams(session, task(), protocol=V4, seconds=0.1)


@pytest.mark.parametrize("kinds", [["stdin"], ["error", "error"], [""]], ids=["not asked for", "twice", "unnamed"])
def test_an_unexpected_stream_is_refused(kinds: list[str]) -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        for kind in kinds:
            client.open(streamtype=kind)

        with pytest.raises(InvalidArgument, match="stream of type"):
            rc.wait_streams(session, task(), protocol=V4, seconds=10)


def test_a_disconnect_of_the_client_ends_the_wait() -> None:
    with session_of(spdy.Connection()) as (session, far):
        far.close()

        with pytest.raises(Cancelled):
            rc.wait_streams(session, task(), protocol=V4, seconds=LONGEST)


def test_terminal_sizes_are_read_however_they_are_split() -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        stream = client.open(streamtype="resize")
        channel = session.next_channel(seconds=10)
        assert channel is not None
        channel.accept()
        sizes = rc.Sizes(channel)
        seen = []
        for piece in (b'{"Width":80,"Hei', b'ght":24}\n{"Width":100,', b'"Height":30}{"Width":0,"Height":1}nonsense}'):
            client.send(stream, piece)
            client.ping()
            seen.append(sizes.known())
        client.send(stream, b'{"Width":1,"Height":2}', fin=True)

        assert seen == [None, rc.TerminalSize(width=80, height=24), rc.TerminalSize(width=100, height=30)]
        assert list(sizes) == [rc.TerminalSize(width=1, height=2)]


def test_only_the_last_of_many_terminal_sizes_counts() -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        stream = client.open(streamtype="resize")
        channel = session.next_channel(seconds=10)
        assert channel is not None
        channel.accept()
        for number in range(1, 1001):
            client.send(stream, b'{"Width":%d,"Height":1}' % number)
        client.send(stream, b"}" * 30000 + b'{"Width":7,"Height":7}', fin=True)
        client.ping()

        assert list(rc.Sizes(channel)) == [rc.TerminalSize(width=7, height=7)]


@pytest.mark.parametrize(("spaces", "known"), [(4000, True), (4200, False)])
def test_at_most_4_kib_of_an_incomplete_size_are_kept(spaces: int, known: bool) -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        resize, marker = client.open(streamtype="resize"), client.open(streamtype="stdin")
        channel, other = session.next_channel(seconds=10), session.next_channel(seconds=10)
        assert channel is not None
        assert other is not None
        sizes = rc.Sizes(channel)
        client.send(resize, b'{"Width":7,' + b" " * spaces)
        client.send(marker, b"x")
        other.read()
        assert sizes.known() is None
        client.send(resize, b'"Height":9}', fin=True)

        assert list(sizes) == [rc.TerminalSize(width=7, height=9)] * known


def test_known_returns_received_sizes_without_waiting() -> None:
    with session_of(spdy.Connection()) as (session, far):
        client = SpdyClient(far)
        resize, marker = client.open(streamtype="resize"), client.open(streamtype="stdin")
        channel, other = session.next_channel(seconds=10), session.next_channel(seconds=10)
        assert channel is not None
        assert other is not None
        sizes = rc.Sizes(channel)
        assert sizes.known() is None
        client.send(resize, b'{"Width":80,"Height":24}{"Width":100,"Height":30}{"Width":7')
        client.send(marker, b"x")
        other.read()

        assert sizes.known() == rc.TerminalSize(width=100, height=30)
        assert sizes.known() == rc.TerminalSize(width=100, height=30)
        client.send(resize, b',"Height":9}', fin=True)
        assert list(sizes) == [rc.TerminalSize(width=7, height=9)]
