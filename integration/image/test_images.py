"""Pulls, lists, statuses and removals of images on real engines."""

import base64
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
import pytest

from integration.conftest import Images
from integration.image.conftest import PROGRESS_DEADLINE, Publish
from integration.image.large_images import push_large_image
from integration.node.engine import Engine
from integration.node.registry import PASSWORD, USER, Registry
from integration.node.registry_proxy import Proxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain import references
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound
from shim.engine.answers import PullProgress
from shim.engine.errors import RegistryDenied, RegistryUnavailable
from shim.engine.interface import RegistryAuth
from shim.image.ensure import ensure_image
from shim.image.fs_info import image_fs_info
from shim.image.list import list_images
from shim.image.pull import pull_image
from shim.image.remove import remove_image
from shim.image.status import image_status
from shim.runtime import Runtime
from shim.stats.images import StoreMeter
from tests.stats.walks import total

SECONDS = 60.0
KIB = 1024
MIB = 1024 * KIB
LARGE = 100 * MIB
LINK = 11 * MIB
"""Bytes per second: the image above takes nine seconds."""


def pull(rt: Runtime, reference: str, **auth: str) -> str:
    return pull_image(rt, image=pb.ImageSpec(image=reference), auth=pb.AuthConfig(**auth) if auth else None)


def pull_in_background(rt: Runtime, reference: str, *, scope: Scope) -> "Future[str]":
    def run() -> str:
        with deadline.entered(scope):
            return pull(rt, reference)

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future


def status(rt: Runtime, name: str, *, verbose: bool = False) -> pb.ImageStatusResponse:
    return image_status(rt, image=pb.ImageSpec(image=name), verbose=verbose)


def present(rt: Runtime, name: str) -> bool:
    return status(rt, name).HasField("image")


def remove(rt: Runtime, name: str) -> None:
    remove_image(rt, image=pb.ImageSpec(image=name))


def listed(rt: Runtime, name: str = "") -> list[pb.Image]:
    return list_images(rt, filter=pb.ImageFilter(image=pb.ImageSpec(image=name)))


# --- pull -------------------------------------------------------------------------------------------------


def test_pull_by_tag(rt: Runtime, publish: Publish) -> None:
    reference = publish("by-tag:1", size=4096, config={"User": "1003:users"})
    image_id = pull(rt, reference)
    image = status(rt, reference).image
    assert image.id == image_id
    assert list(image.repo_tags) == [reference]
    assert [digest.partition("@")[0] for digest in image.repo_digests] == [reference.rpartition(":")[0]]
    assert image.size > 1000
    assert image.uid.value == 1003
    assert image in listed(rt)
    remove(rt, image_id)


def test_pull_without_a_tag(rt: Runtime, publish: Publish) -> None:
    reference = publish("no-tag")
    image_id = pull(rt, reference.removesuffix(":latest"))
    assert list(status(rt, image_id).image.repo_tags) == [reference]
    remove(rt, image_id)


def test_pull_by_digest(rt: Runtime, publish: Publish) -> None:
    tagged = publish("by-digest:1")
    first_id = pull(rt, tagged)
    by_digest = status(rt, tagged).image.repo_digests[0]
    remove(rt, tagged)
    assert not present(rt, by_digest)
    assert pull(rt, by_digest) == first_id
    image = status(rt, by_digest).image
    assert (list(image.repo_tags), list(image.repo_digests)) == ([], [by_digest])
    both = f"{tagged}@{by_digest.partition('@')[2]}"
    assert pull(rt, both) == first_id
    remove(rt, both)
    assert not present(rt, by_digest)


def test_a_repeated_pull_returns_the_same_image(rt: Runtime, publish: Publish) -> None:
    reference = publish("again:1")
    assert pull(rt, reference) == pull(rt, reference)
    remove(rt, reference)


def test_one_image_from_two_registries_has_one_id(
    rt: Runtime, publish: Publish, proxy: Proxy, registry: Registry
) -> None:
    reference = publish("twice:1")
    other = reference.replace(registry.address, proxy.address)
    assert pull(rt, reference) == pull(rt, other)
    assert list(status(rt, reference).image.repo_tags) == sorted([reference, other])
    remove(rt, reference)
    assert not present(rt, other)


@pytest.mark.parametrize(
    ("path", "words"),
    [("missing/image:1", "has no such image"), ("by-tag:no-such-tag", "has no such image")],
    ids=["repository", "tag"],
)
def test_a_pull_of_an_unknown_image_is_not_found(rt: Runtime, registry: Registry, path: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        pull(rt, f"{registry.address}/{path}")


def test_a_registry_that_refuses_connections_is_unavailable(rt: Runtime) -> None:
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image \S+: .*refused"):
        pull(rt, "127.0.0.1:1/x")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_registry_that_answers_with_errors_is_unavailable(rt: Runtime, status: int) -> None:
    with answering(status) as address, pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image "):
        pull(rt, f"{address}/x:1")


TOO_MANY = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}]}'
DOWN = b'{"errors": [{"code": "UNAVAILABLE", "message": "service unavailable"}]}'


@pytest.mark.parametrize(("status", "body"), [(429, TOO_MANY), (503, DOWN)])
def test_a_pull_error_has_the_registrys_message(rt: Runtime, status: int, body: bytes) -> None:
    with (
        answering(status, body=body) as address,
        pytest.raises(RegistryUnavailable, match=r"(?i)^RegistryUnavailable: pull image \S+: .*(many|limit|unavail)"),
    ):
        pull(rt, f"{address}/x:1")


@pytest.mark.parametrize(("status", "body"), [(429, TOO_MANY), (429, b""), (503, DOWN), (503, b"")])
def test_a_registry_without_the_layers_fails_the_pull(
    rt: Runtime, publish: Publish, registry: Registry, status: int, body: bytes
) -> None:
    reference = publish("rated:1")
    with (
        answering(status, body=body, upstream=registry.address) as address,
        pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image "),
    ):
        pull(rt, reference.replace(registry.address, address))
    assert not present(rt, reference)


@contextmanager
def answering(status: int, *, body: bytes = b"", upstream: str = "") -> Iterator[str]:
    """Answer all requests alike, or with `upstream` only those for layers; yields the address."""

    class Answer(BaseHTTPRequestHandler):
        # A client that tries TLS first gets a status line, and then tries plain HTTP.
        default_request_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if upstream and "/blobs/" not in self.path:
                self.send_response(307)
                self.send_header("Location", f"http://{upstream}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

        do_HEAD = do_GET  # noqa: N815 - named by http.server

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


# --- credentials ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "auth",
    [
        {"username": USER, "password": PASSWORD},
        {"auth": base64.b64encode(f"{USER}:{PASSWORD}\0".encode()).decode()},
    ],
    ids=["user and password", "auth"],
)
def test_a_private_image_is_pulled_with_credentials(rt: Runtime, publish: Publish, auth: dict[str, str]) -> None:
    reference = publish("private:1", private=True)
    image_id = pull(rt, reference, **auth)
    assert status(rt, reference).image.id == image_id
    remove(rt, image_id)


def test_credentials_may_name_the_registrys_address(rt: Runtime, publish: Publish, private_registry: Registry) -> None:
    reference = publish("private-address:1", private=True)
    server = f"http://{private_registry.address}/v2/"
    image_id = pull(rt, reference, username=USER, password=PASSWORD, server_address=server)
    remove(rt, image_id)


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ({}, "requires credentials"),
        ({"username": USER, "password": "wr0ng pa55word"}, "does not accept these credentials"),
        (
            {"username": USER, "password": PASSWORD, "server_address": "other.example"},
            "the given credentials are for other",
        ),
    ],
    ids=["none", "wrong", "for another registry"],
)
def test_a_pull_with_wrong_credentials_is_denied(
    rt: Runtime, publish: Publish, auth: dict[str, str], words: str
) -> None:
    reference = publish("denied:1", private=True)
    with pytest.raises(RegistryDenied, match=f"unauthorized: .* {words}") as caught:
        pull(rt, reference, **auth)
    assert PASSWORD not in str(caught.value)
    assert "wr0ng" not in str(caught.value)


@contextmanager
def bearing(access_token: str, *, refresh_token: str) -> Iterator[str]:
    """Serve a registry without images to clients with this token, which they may get from its token server."""

    class Answer(BaseHTTPRequestHandler):
        default_request_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Authorization") == f"Bearer {access_token}":
                self.answer(404, {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]})
            else:
                realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="tests"'
                self.answer(401, {"errors": [{"code": "UNAUTHORIZED"}]}, challenge=realm)

        do_HEAD = do_GET  # noqa: N815 - named by http.server

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            is_known = form.get("refresh_token") == [refresh_token]
            self.answer(200 if is_known else 401, {"access_token": access_token, "token": access_token})

        def answer(self, status: int, body: object, *, challenge: str = "") -> None:
            content = msgspec.json.encode(body)
            self.send_response(status)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if self.command != "HEAD" else b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", ["registry_token", "identity_token"])
def test_a_pull_uses_tokens(rt: Runtime, kind: str) -> None:
    tokens = {"registry_token": "to-the-registry", "identity_token": "to-the-token-server"}
    with bearing(tokens["registry_token"], refresh_token=tokens["identity_token"]) as address:
        with pytest.raises(NotFound, match="has no such image"):
            pull(rt, f"{address}/x:1", **{kind: tokens[kind]})
        with pytest.raises(RegistryDenied) as denied:
            pull(rt, f"{address}/x:1", **{kind: "wr0ng-token"})
    assert "wr0ng" not in str(denied.value)


# --- silence, cancellation, shared pulls ------------------------------------------------------------------


def test_a_registry_that_resets_connections_is_unavailable(rt: Runtime, publish: Publish, proxy: Proxy) -> None:
    reference = publish("reset:1")
    proxy.reset(after=0, times=1000)
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image \S+: .*reset by peer"):
        pull(rt, f"{proxy.address}/{reference.partition('/')[2]}")


def test_a_layer_is_requested_again_after_a_reset_connection(
    rt: Runtime, engine: Engine, publish: Publish, proxy: Proxy, registry: Registry
) -> None:
    reference = publish("reset-layer:1", size=4 * MIB).replace(registry.address, proxy.address)
    proxy.reset(after=300_000, times=1)
    # Docker waits five seconds before it retries, longer than the permitted silence here. With the containerd store
    # the caller has to repeat the pull.
    if engine.has_containerd_store:
        with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image \S+: .*reset by peer"):
            pull(rt, reference)
    image_id = pull(rt, reference)
    assert proxy.is_done_resetting()
    assert present(rt, reference)
    remove(rt, image_id)


@pytest.mark.parametrize("before", [0, 300_000], ids=["manifest", "layer"])
def test_a_pull_from_a_silent_registry_fails(
    rt: Runtime, publish: Publish, proxy: Proxy, registry: Registry, before: int
) -> None:
    reference = publish("silent:1", size=4 * MIB).replace(registry.address, proxy.address)
    proxy.allow(before)
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image \S+: no progress for 2 s"):
        pull(rt, reference)
    assert time.monotonic() - began < PROGRESS_DEADLINE + SECONDS
    proxy.wait_given_up()


def test_a_pull_from_a_slow_registry_goes_on(rt: Runtime, publish: Publish, proxy: Proxy, registry: Registry) -> None:
    reference = publish("slow:1", size=10 * MIB).replace(registry.address, proxy.address)
    proxy.allow(300_000)
    began = time.monotonic()
    future = pull_in_background(rt, reference, scope=Scope())
    while time.monotonic() - began < 2 * PROGRESS_DEADLINE:
        proxy.wait_blocked(timeout=SECONDS)
        threading.Event().wait(0.5)
        proxy.allow(700_000)  # the containerd store reports progress for each MiB
    proxy.allow(None)
    image_id = future.result(SECONDS)
    assert time.monotonic() - began > 2 * PROGRESS_DEADLINE
    assert present(rt, reference)
    remove(rt, image_id)


def test_a_large_image_is_pulled_over_a_slow_link(
    rt: Runtime, registry: Registry, proxy: Proxy, tmp_path: Path
) -> None:
    reference = push_large_image(registry, name="large:1", size=LARGE, directory=tmp_path)
    proxy.throttle(LINK)
    config = msgspec.structs.replace(rt.config, image_pull_progress_deadline=LARGE / LINK / 3)
    began = time.monotonic()
    image_id = pull(replace(rt, config=config), reference.replace(registry.address, proxy.address))
    assert time.monotonic() - began > LARGE / LINK
    assert status(rt, image_id).image.size >= LARGE
    remove(rt, image_id)


@pytest.fixture
def reported(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Record Docker's progress messages of each pull, by reference."""
    said: dict[str, list[str]] = defaultdict(list)
    pull_image = rt.engine.pull_image

    def listening(reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]) -> None:
        def listen(message: PullProgress) -> None:
            said[reference].append(f"{message.status} {message.id}")
            progress(message)

        pull_image(reference, auth=auth, progress=listen)

    monkeypatch.setattr(rt.engine, "pull_image", listening)
    return said


def downloads(said: list[str]) -> int:
    """Return the number of layers whose download has begun."""
    return len({each for each in said if each.startswith("Downloading ")})


def test_a_pull_waits_for_download_slots_without_a_timeout(
    rt: Runtime, engine: Engine, registry: Registry, proxy: Proxy, tmp_path: Path, reported: dict[str, list[str]]
) -> None:
    three = push_large_image(registry, name="three:1", size=8 * MIB, directory=tmp_path, layers=3)
    one = push_large_image(registry, name="one:1", size=KIB, directory=tmp_path)
    proxy.throttle(24 * MIB / (4 * PROGRESS_DEADLINE))
    three, one = (each.replace(registry.address, proxy.address) for each in (three, one))
    first = pull_in_background(rt, three, scope=Scope())
    wait_until(lambda: downloads(reported[three]) == 3)
    second = pull(rt, one)
    # The containerd store has no queue of downloads.
    assert any(each.startswith("Waiting ") for each in reported[one]) is (not engine.has_containerd_store)
    remove(rt, second)
    remove(rt, first.result(SECONDS))


def test_a_pull_with_a_silent_layer_fails_while_another_progresses(
    rt: Runtime, publish: Publish, registry: Registry, proxy: Proxy, tmp_path: Path
) -> None:
    moving = push_large_image(registry, name="moving:1", size=20 * MIB, directory=tmp_path)
    silent = publish("silent-beside:1", size=4 * MIB)
    proxy.throttle(20 * MIB / (8 * PROGRESS_DEADLINE))
    first = pull_in_background(rt, moving.replace(registry.address, proxy.address), scope=Scope())
    blocked = Proxy(registry.address)
    blocked.allow(300_000)
    with closing(blocked), pytest.raises(RegistryUnavailable, match=r"no progress for 2 s$"):
        pull(rt, silent.replace(registry.address, blocked.address))
    assert not first.done()
    remove(rt, first.result(SECONDS))


def test_a_cancelled_call_ends_dockers_pull(rt: Runtime, publish: Publish, proxy: Proxy, registry: Registry) -> None:
    reference = publish("cancelled:1", size=4 * MIB).replace(registry.address, proxy.address)
    proxy.allow(300_000)
    scope = Scope()
    future = pull_in_background(rt, reference, scope=scope)
    proxy.wait_blocked(timeout=SECONDS)
    scope.cancel()
    with pytest.raises(Cancelled):
        future.result(SECONDS)
    proxy.wait_given_up()
    assert not present(rt, reference)
    proxy.allow(None)
    remove(rt, pull(rt, reference))


def test_a_cancelled_caller_does_not_end_a_shared_pull(
    rt: Runtime, publish: Publish, proxy: Proxy, registry: Registry
) -> None:
    reference = publish("shared:1", size=4 * MIB).replace(registry.address, proxy.address)
    proxy.allow(300_000)
    leaving = Scope()
    first = pull_in_background(rt, reference, scope=leaving)
    proxy.wait_blocked(timeout=SECONDS)
    second = pull_in_background(rt, reference, scope=Scope())
    third = pull_in_background(rt, reference, scope=Scope(seconds=0.2))
    with pytest.raises(DeadlineExceeded):
        third.result(SECONDS)
    leaving.cancel()
    proxy.allow(None)
    remove(rt, second.result(SECONDS))
    with pytest.raises(Cancelled):  # this thread ran the pull for both
        first.result(SECONDS)


def test_a_pull_with_a_deadline_of_a_millisecond_fails(rt: Runtime, publish: Publish) -> None:
    reference = publish("hurried:1")
    with deadline.entered(Scope(seconds=0.001)), pytest.raises(DeadlineExceeded):
        pull(rt, reference)
    remove(rt, pull(rt, reference))


# --- list and status --------------------------------------------------------------------------------------


def test_every_name_of_an_image_gives_the_same_status(rt: Runtime, engine: Engine, publish: Publish) -> None:
    reference = publish("names:1")
    image_id = pull(rt, reference)
    engine.api.tag(image_id, "docker.io/team/names", "2")
    rt.view.images.refresh()
    image = status(rt, image_id).image
    assert list(image.repo_tags) == sorted([reference, "docker.io/team/names:2"])
    names = [*image.repo_tags, *image.repo_digests, "team/names:2", image_id.removeprefix("sha256:"), image_id[:20]]
    for name in names:
        assert status(rt, name).image == image
        assert listed(rt, name) == [image]
    remove(rt, image_id)


@pytest.mark.parametrize(
    ("user", "uid", "username"),
    [("", None, ""), ("1002", 1002, ""), ("www-data:100", None, "www-data"), ("1003:users", 1003, "")],
)
def test_a_status_has_the_images_user(rt: Runtime, images: Images, user: str, uid: int | None, username: str) -> None:
    images.load("local/user:1", {"User": user})
    rt.view.images.refresh()
    image = status(rt, "local/user:1").image
    assert (image.uid.value if image.HasField("uid") else None, image.username) == (uid, username)
    remove(rt, "local/user:1")


def test_the_pause_image_is_pinned_under_all_its_names(rt: Runtime, engine: Engine, images: Images) -> None:
    engine.api.tag(images.pause, "local/another-name", "1")
    rt.view.images.refresh()
    assert status(rt, "local/another-name:1").image.pinned
    assert [image.pinned for image in listed(rt, images.busybox)] == [False]
    engine.api.remove_image("local/another-name:1")


def test_a_verbose_status_has_the_image_configuration(rt: Runtime, images: Images) -> None:
    images.load("local/verbose:1", {"User": "www", "Labels": {"a": "b"}, "Entrypoint": ["/bin/sh"], "Cmd": ["-c", "x"]})
    rt.view.images.refresh()
    info = msgspec.json.decode(status(rt, "local/verbose:1", verbose=True).info["info"])
    config = info["imageSpec"]["config"]
    assert (config["User"], config["Labels"], config["Entrypoint"]) == ("www", {"a": "b"}, ["/bin/sh"])
    remove(rt, "local/verbose:1")


def test_a_missing_image_has_an_empty_status(rt: Runtime) -> None:
    assert status(rt, "missing/image:1") == pb.ImageStatusResponse()
    assert listed(rt, "missing/image:1") == []


# --- remove -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["id", "short id", "tag", "other tag", "digest"])
def test_a_removal_removes_all_names(rt: Runtime, engine: Engine, publish: Publish, by: str) -> None:
    reference = publish("removed:1")
    image_id = pull(rt, reference)
    engine.api.tag(image_id, "elsewhere.example/removed", "2")
    rt.view.images.refresh()
    digest = status(rt, reference).image.repo_digests[0]
    names = {
        "id": image_id,
        "short id": image_id[7:19],
        "tag": reference,
        "other tag": "elsewhere.example/removed:2",
        "digest": digest,
    }
    remove(rt, names[by])
    assert not any(present(rt, name) for name in names.values())
    assert image_id not in {image["Id"] for image in engine.api.images()}


def test_an_image_that_docker_just_pulled_can_be_removed(rt: Runtime, engine: Engine, publish: Publish) -> None:
    reference = publish("unseen:1")
    engine.api.pull(reference)
    remove(rt, reference)
    assert reference not in {tag for image in engine.api.images() for tag in image["RepoTags"] or ()}


def test_a_removal_of_a_missing_image_succeeds(rt: Runtime) -> None:
    remove(rt, "missing/image:1")
    remove(rt, "6c7f0e0e-5e6e-4f6e-9d0e-0a4bcb5a3a2b")


def test_five_concurrent_removals_succeed(rt: Runtime, publish: Publish) -> None:
    reference = publish("contended:1")
    image_id = pull(rt, reference)

    def remove_and_check(name: str) -> bool:
        remove(rt, name)
        return present(rt, image_id)

    with ThreadPoolExecutor(5) as pool:
        left = list(pool.map(remove_and_check, [image_id, reference, image_id, reference, image_id]))
    assert left == [False] * 5


def test_an_image_in_use_is_not_removed(rt: Runtime, engine: Engine, publish: Publish) -> None:
    reference = publish("used:1", programs=True)
    image_id = pull(rt, reference)
    container = engine.api.create_container(reference, command=["sleep", "60"])["Id"]
    engine.api.start(container)
    before = status(rt, reference).image
    with pytest.raises(FailedPrecondition, match=container[:12]):
        remove(rt, reference)
    rt.view.images.refresh()
    assert status(rt, reference).image == before
    engine.api.remove_container(container, force=True)
    remove(rt, image_id)
    assert not present(rt, reference)


def test_an_image_with_descendants_can_be_removed(rt: Runtime, engine: Engine, publish: Publish) -> None:
    reference = publish("parent:1")
    parent = pull(rt, reference)
    container = engine.api.create_container(reference, command=["true"])["Id"]
    engine.api.commit(container, "local/child", "1")
    engine.api.remove_container(container)
    rt.view.images.refresh()
    remove(rt, reference)
    assert not present(rt, parent)
    assert not present(rt, reference)
    assert present(rt, "local/child:1")
    remove(rt, "local/child:1")


def test_an_image_with_descendants_keeps_its_names_while_a_container_uses_it(
    rt: Runtime, engine: Engine, publish: Publish
) -> None:
    reference = publish("parent-in-use:1", programs=True)
    parent = pull(rt, reference)
    container = engine.api.create_container(reference, command=["sleep", "60"])["Id"]
    engine.api.start(container)
    engine.api.commit(container, "local/child-in-use", "1")
    rt.view.images.refresh()
    before = status(rt, parent).image
    with pytest.raises(FailedPrecondition, match=container[:12]):
        remove(rt, reference)
    rt.view.images.refresh()
    assert status(rt, parent).image == before
    engine.api.remove_container(container, force=True)
    remove(rt, reference)
    assert not present(rt, parent)
    remove(rt, "local/child-in-use:1")


# --- disk usage, ensure -----------------------------------------------------------------------------------


def measured(rt: Runtime) -> pb.FilesystemUsage:
    """Wait for a whole measurement of the image store, and return the reported usage."""
    meter = StoreMeter(rt)
    while (part := meter.next_part()) is not None:
        name, top = part
        meter.note(name, total(top))
    (usage,) = image_fs_info(rt).image_filesystems
    return usage


def test_image_fs_info_reports_dockers_file_system(rt: Runtime, engine: Engine, images: Images) -> None:
    info = image_fs_info(rt)
    assert [usage.fs_id for usage in info.container_filesystems] == [usage.fs_id for usage in info.image_filesystems]
    (early,) = info.image_filesystems
    usage = measured(rt)
    assert usage.fs_id == early.fs_id
    root = Path(usage.fs_id.mountpoint)
    assert root.is_dir()
    assert root.is_relative_to(engine.home / "data")
    if engine.has_containerd_store:
        assert root.name == "io.containerd.snapshotter.v1.overlayfs"
    size = status(rt, images.busybox).image.size
    assert early.used_bytes.value >= size // 2
    assert usage.used_bytes.value >= size // 2
    assert usage.inodes_used.value > 0
    assert abs(time.time_ns() - usage.timestamp) < 60 * 10**9


def test_image_fs_info_counts_the_bytes_of_an_image(rt: Runtime, engine: Engine, publish: Publish) -> None:
    reference = publish("stored:1", size=8 * MIB, programs=True)
    before = measured(rt)
    image_id = pull(rt, reference)
    with_it = measured(rt)
    # Data of containers is not counted.
    container = engine.api.create_container(reference, command=["sh", "-c", "cp /noise /copy && sleep 60"])["Id"]
    engine.api.start(container)
    wait_until(lambda: bool(engine.api.diff(container)), seconds=SECONDS)
    with_container = measured(rt)
    engine.api.remove_container(container, force=True)
    remove(rt, image_id)

    # The containerd store also keeps the compressed image.
    times = 2 if engine.has_containerd_store else 1
    assert with_it.used_bytes.value - before.used_bytes.value == pytest.approx(times * 8 * MIB, rel=0.4)
    assert with_it.inodes_used.value > before.inodes_used.value
    assert with_container.used_bytes.value - with_it.used_bytes.value < MIB
    assert measured(rt).used_bytes.value - before.used_bytes.value < MIB


def test_ensure_uses_a_local_image(rt: Runtime, images: Images) -> None:
    assert ensure_image(rt, reference=images.pause).id == status(rt, images.pause).image.id


def test_ensure_pulls_a_missing_image(rt: Runtime, publish: Publish) -> None:
    reference = publish("ensured:1")
    image_id = ensure_image(rt, reference=reference).id
    assert status(rt, reference).image.id == image_id
    remove(rt, image_id)


def test_the_error_of_ensure_gives_the_remedy(rt: Runtime) -> None:
    with pytest.raises(FailedPrecondition, match=r"pause image 127.0.0.1:1/pause:9 .*pod_infra_container_image"):
        ensure_image(rt, reference="127.0.0.1:1/pause:9")


def test_canonical_names_only(rt: Runtime) -> None:
    for image in listed(rt):
        for name in (*image.repo_tags, *image.repo_digests):
            assert references.canonical(name) == name
