"""Pulls and events, over scripted bytes."""

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ShimError, Unavailable
from shim.engine.answers import Event, PullProgress
from shim.engine.client import DockerEngine
from shim.engine.errors import RegistryDenied
from shim.engine.interface import CONTAINER_ACTIONS, IMAGE_ACTIONS, RegistryAuth
from shim.engine.messages import _Lines, split_reference
from tests.fakes.http_unix import CLOSE, HANG, SECONDS, ScriptedServer, Step, chunk, chunked, response

PULL = "POST /v1.51/images/create"
EVENTS = "GET /v1.51/events"
HEX = "0123456789abcdef" * 4


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\r\n" for message in messages)


def query(server: ScriptedServer) -> dict[str, list[str]]:
    return parse_qs(urlsplit(server.requests[-1].target).query)


def pull(engine: DockerEngine, reference: str = "a/b:1", auth: RegistryAuth | None = None) -> list[PullProgress]:
    reported: list[PullProgress] = []
    engine.pull_image(reference, auth=auth, progress=reported.append)
    return reported


# Lines


def test_a_line_of_more_than_1_mib_is_cut_to_4_kib() -> None:
    cutter = _Lines()
    assert cutter.take(b"x" * (1 << 20)) == []
    assert cutter.take(b"\n" + b"y" * (1 << 20)) == [(b"x" * (1 << 20), False)]
    assert cutter.take(b"z" * 9000) == []

    assert cutter.take(b"z\n") == [(b"y" * 4096, True)]


# Pull


def test_progress_is_reported_message_by_message(adapter: DockerEngine, server: ScriptedServer) -> None:
    wire = lines(
        {"status": "Pulling from a/b", "id": "1"},
        {"status": "Downloading", "id": "l", "progressDetail": {"current": 1, "total": 2}, "progress": "[=> ]"},
        {"status": "Digest: sha256:0"},
    )
    server.on(PULL, chunked(), chunk(wire[:20]), chunk(wire[20:21]), chunk(wire[21:-1]), chunk(wire[-1:]), chunk(b""))

    assert pull(adapter) == [
        PullProgress("1", "Pulling from a/b"),
        PullProgress("l", "Downloading", {"current": 1, "total": 2}),
        PullProgress("", "Digest: sha256:0"),
    ]


@pytest.mark.parametrize(
    ("reference", "image", "tag"),
    [
        ("busybox", "busybox", "latest"),
        ("busybox:1", "busybox", "1"),
        ("localhost:5000/a/b", "localhost:5000/a/b", "latest"),
        ("localhost:5000/a/b:1", "localhost:5000/a/b", "1"),
        (f"a.b/c@sha256:{HEX}", "a.b/c", f"sha256:{HEX}"),
        (f"a.b:80/c:1@sha256:{HEX}", "a.b:80/c", f"sha256:{HEX}"),
    ],
)
def test_a_pull_requests_one_tag_or_digest(reference: str, image: str, tag: str) -> None:
    assert split_reference(reference) == (image, tag)


def test_credentials_are_sent_only_in_their_header(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, response(200, b""))
    pull(adapter, auth=RegistryAuth(username="ü", password="s>?cret", serveraddress="a"))
    sent = server.requests[-1]

    assert json.loads(base64.urlsafe_b64decode(sent.headers["x-registry-auth"])) == {
        "username": "ü",
        "password": "s>?cret",
        "serveraddress": "a",
    }
    assert query(server) == {"fromImage": ["a/b"], "tag": ["1"]}
    assert sent.body == b""


def test_a_pull_without_credentials_has_no_auth_header(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, response(200, b""))
    pull(adapter)

    assert "x-registry-auth" not in server.requests[-1].headers


def test_a_failure_in_the_stream_is_raised_after_the_progress(adapter: DockerEngine, server: ScriptedServer) -> None:
    failure = {"errorDetail": {"message": "toomanyrequests: slow down"}, "error": "toomanyrequests: slow down"}
    server.on(PULL, chunked(), chunk(lines({"status": "Pulling"}, failure)), chunk(b""))
    reported: list[PullProgress] = []

    with pytest.raises(ShimError, match="pull image a/b:1: toomanyrequests: slow down"):
        adapter.pull_image("a/b:1", auth=None, progress=reported.append)

    assert [message.status for message in reported] == ["Pulling"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"errorDetail": {"code": 1, "message": "manifest unknown"}}, NotFound),
        ({"error": "unauthorized: authentication required"}, RegistryDenied),
        ({"errorDetail": None, "error": "manifest unknown"}, NotFound),
    ],
    ids=["detail", "error alone", "null detail"],
)
def test_both_forms_of_a_failure_are_read(
    adapter: DockerEngine, server: ScriptedServer, failure: object, kind: type[ShimError]
) -> None:
    server.on(PULL, chunked(), chunk(lines(failure)), chunk(b""))

    with pytest.raises(kind):
        pull(adapter)


def test_a_refused_pull_shows_no_credentials(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, response(401, {"message": "unauthorized: incorrect username or password"}))

    with pytest.raises(RegistryDenied) as failed:
        pull(adapter, auth=RegistryAuth(username="u", password="s3cret"))

    cause = failed.value.__cause__
    assert "s3cret" not in f"{failed.value} {cause!r} {RegistryAuth(password='s3cret')!r}"


def test_a_pull_that_breaks_off_fails(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, chunked(), chunk(lines({"status": "Downloading"})), CLOSE)

    with pytest.raises(Unavailable, match="middle of the response"):
        pull(adapter)


def test_a_progress_message_that_is_no_json_is_an_error(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, chunked(), chunk(b"<html>\n"), chunk(b""))

    with pytest.raises(ShimError, match=r"pull image a/b:1: Docker's answer cannot be read"):
        pull(adapter)


def test_a_cancelled_pull_closes_the_connection(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, chunked(), chunk(lines({"status": "Downloading"})), HANG)
    scope = Scope()
    with deadline.entered(scope), pytest.raises(Cancelled, match="pull image a/b:1"):
        adapter.pull_image("a/b:1", auth=None, progress=lambda _message: scope.cancel())

    server.wait_hung_up()


def test_a_cancelled_pull_ignores_messages_read_before(adapter: DockerEngine, server: ScriptedServer) -> None:
    every = lines({"status": "Downloading"}, {"status": "Status: Downloaded newer image for a/b:1"})
    server.on(PULL, chunked(), chunk(every), chunk(b""))
    scope = Scope()
    with deadline.entered(scope), pytest.raises(Cancelled, match="pull image a/b:1"):
        adapter.pull_image("a/b:1", auth=None, progress=lambda _message: scope.cancel())


def test_a_pull_returns_after_the_last_message(adapter: DockerEngine, server: ScriptedServer) -> None:
    reported = threading.Event()
    server.on(PULL, chunked(), chunk(lines({"status": "Status: Image is up to date for a/b:1"})), reported, chunk(b""))
    # Now only the connection of the pull can be reused.
    server.on("GET /v1.51/images/json", response(200, [], headers=["Connection: close"]), CLOSE)
    assert [message.status for message in pull(adapter)] == ["Status: Image is up to date for a/b:1"]
    first = server.requests[-1].connection

    reported.set()
    with deadline.bound(SECONDS):
        while server.requests[-1].connection != first or server.requests[-1].line == PULL:
            adapter.list_images()


@pytest.mark.parametrize("rest", [[CLOSE], [b"3\r\nnon", CLOSE], [chunk(b"sense") + chunk(b"") + b"more"]])
def test_a_connection_closed_after_the_last_message_is_not_reused(
    adapter: DockerEngine, server: ScriptedServer, rest: list[Step]
) -> None:
    server.on(PULL, chunked(), chunk(lines({"status": "Status: Downloaded newer image for a/b:1"})), *rest)
    server.on("GET /v1.51/images/json", response(200, []))
    for _ in range(3):
        assert len(pull(adapter)) == 1
        assert adapter.list_images() == []


def test_a_pull_is_bound_by_its_scope_alone(impatient: DockerEngine, server: ScriptedServer) -> None:
    late = threading.Event()
    server.on(PULL, chunked(), late, chunk(lines({"status": "Done"})), chunk(b""))
    threading.Timer(0.2, late.set).start()
    assert [message.status for message in pull(impatient)] == ["Done"]


class Prolonged(Scope):
    """A scope whose deadline is extended again and again: each wait from the first message on times out too early."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[PullProgress] = []
        self.waits = 0
        self.waited = threading.Event()
        """Set at the begin of the third wait, when two waits have timed out."""

    def expiry(self) -> float | None:
        if not self.heard:
            return None
        self.waits += 1
        if self.waits == 3:
            self.waited.set()
        return time.monotonic() + 0.02

    @property
    def expired(self) -> bool:
        return False  # also for a thread that is delayed between two reads of the clock


def test_a_pull_continues_if_its_deadline_is_extended_during_a_wait(
    adapter: DockerEngine, server: ScriptedServer
) -> None:
    scope = Prolonged()
    begun, done = (chunk(lines({"status": status})) for status in ("Begun", "Done"))
    server.on(PULL, chunked(), begun, scope.waited, done, chunk(b""))
    with deadline.entered(scope):
        adapter.pull_image("a/b:1", auth=None, progress=scope.heard.append)
    assert [message.status for message in scope.heard] == ["Begun", "Done"]


def test_a_pull_ends_with_its_deadline(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(PULL, chunked(), HANG)
    assert adapter.api_version  # connect now, since only the next call has to be in time
    with deadline.bound(0.05), pytest.raises(DeadlineExceeded, match="pull image a/b:1"):
        pull(adapter)
    server.wait_hung_up()


# Events


def event(action: str, number: int = 1) -> dict[str, object]:
    actor = {"ID": "c", "Attributes": {"name": "n"}}
    return {"Type": "container", "Action": action, "Actor": actor, "scope": "local", "time": 1, "timeNano": number}


def test_events_are_yielded_as_they_arrive(adapter: DockerEngine, server: ScriptedServer) -> None:
    second = threading.Event()
    server.on(EVENTS, chunked(), chunk(lines(event("create", 5))), second, chunk(lines(event("start", 6))), HANG)
    with adapter.events(since=None) as events:
        first = next(events)
        second.set()

        assert (first.type, first.action, first.actor.id, first.time_nano) == ("container", "create", "c", 5)
        assert first.actor.attributes == {"name": "n"}
        assert next(events).action == "start"
    server.wait_hung_up()


@pytest.mark.parametrize(("since", "text"), [(1_700_000_000_000_000_005, "1700000000.000000005"), (7, "0.000000007")])
def test_events_are_requested_since_a_nanosecond(
    adapter: DockerEngine, server: ScriptedServer, since: int, text: str
) -> None:
    server.on(EVENTS, chunked(), HANG)
    with adapter.events(since=since):
        asked = query(server)

    assert asked["since"] == [text]
    filters = json.loads(asked["filters"][0])
    assert filters["type"] == ["container", "image"]
    assert set(filters["event"]) == CONTAINER_ACTIONS | IMAGE_ACTIONS


def test_events_from_now_on_leave_no_gap_before_the_subscription(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(EVENTS, chunked(), HANG)
    before = time.time_ns()
    with adapter.events(since=None):
        after = time.time_ns()
    seconds, _, nanoseconds = query(server)["since"][0].partition(".")

    assert before <= int(seconds) * 10**9 + int(nanoseconds) <= after


@pytest.mark.parametrize("end", [(CLOSE,), (chunk(b""), CLOSE)], ids=["lost", "ended"])
def test_a_lost_event_stream_is_unavailable(adapter: DockerEngine, server: ScriptedServer, end: tuple[bytes]) -> None:
    server.on(EVENTS, chunked(), chunk(lines(event("create"))), *end)
    with adapter.events(since=None) as events:
        assert next(events).action == "create"
        with pytest.raises(Unavailable, match="watch Docker's events"):
            next(events)


def test_a_reader_in_another_thread_ends_with_the_block(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(EVENTS, chunked(), chunk(lines(event("create"))), HANG)
    got_one = threading.Event()

    def read(events: list[Event]) -> list[Event]:
        seen = []
        for one in events:
            seen.append(one)
            got_one.set()
        return seen

    with ThreadPoolExecutor(1) as pool:
        with adapter.events(since=None) as stream:
            reading = pool.submit(read, stream)  # type: ignore[arg-type]  # any iterable
            assert got_one.wait(10)
        assert [one.action for one in reading.result(10)] == ["create"]
    server.wait_hung_up()


def test_a_refused_event_stream_is_reported_at_once(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(EVENTS, response(500, {"message": "out of order"}))

    with pytest.raises(ShimError, match="watch Docker's events: out of order"), adapter.events(since=None):
        pytest.fail("it was opened")


def test_an_event_stream_ends_with_its_client(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(EVENTS, chunked(), HANG)
    scope = Scope()
    with deadline.entered(scope), adapter.events(since=None) as events, ThreadPoolExecutor(1) as pool:
        pool.submit(scope.cancel)
        with pytest.raises(Cancelled):
            next(events)
