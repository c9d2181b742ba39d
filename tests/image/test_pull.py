"""PullImage: bounded by silence, shared by callers, with clear errors."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deadline import ProgressClock, Scope
from shim.base.lru_cache import LruCache
from shim.credentials.keyring import Keyring
from shim.domain.errors import Cancelled, DeadlineExceeded, InvalidArgument, NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.answers import ImageSettings, ImageSummary, PullProgress
from shim.engine.errors import RegistryDenied, RegistryErrorUnknown, RegistryUnavailable, TooManyRequests
from shim.engine.interface import RegistryAuth
from shim.image import stall_timeout
from shim.image.pull import pull_image
from shim.runtime import ImagePuller, Runtime
from tests.fakes.engine import FakeEngine

APP = "r.example/team/app:1"
SECONDS = 10.0
SNAPSHOTTER = ["driver-type", "io.containerd.snapshotter.v1"]


BEGUN = PullProgress(status=f"Pulling from {APP}")
"""The fake Engine's message too; a repeated message is no progress."""
RETRYING = PullProgress(id="a", status="Retrying in 5 seconds")


class Late:
    """A list that Docker has made, and that arrives later."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()


class TalkingEngine(FakeEngine):
    """A fake Engine whose pulls send the test's messages before they block, and whose next list may be late."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[PullProgress] = []
        self.late: Late | None = None
        self.cut_short = threading.Event()
        """Set when a pull was cancelled."""

    def list_images(self) -> list[ImageSummary]:
        listed = super().list_images()
        if self.late is not None:
            late, self.late = self.late, None
            late.entered.set()
            assert late.go_on.wait(SECONDS)
        return listed

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        for message in self.says:
            progress(message)
        try:
            super().pull_image(reference, auth=auth, progress=progress)
        except Cancelled:
            self.cut_short.set()
            raise


@pytest.fixture
def engine() -> TalkingEngine:
    engine = TalkingEngine()
    engine.publish_image(APP)
    return engine


def pull(rt: Runtime, name: str = APP, **auth: str) -> str:
    return pull_image(rt, image=pb.ImageSpec(image=name), auth=pb.AuthConfig(**auth) if auth else None)


def patient(rt: Runtime, seconds: float) -> Runtime:
    return replace(rt, config=msgspec.structs.replace(rt.config, image_pull_progress_deadline=seconds))


class Callers:
    """Callers of a pull, each in a thread."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._pool = ThreadPoolExecutor(8)

    def pull(self, *, scope: Scope | None = None, **auth: str) -> "Future[str]":
        def run() -> str:
            with deadline.entered(scope or Scope()):
                return pull(self._rt, **auth)

        return self._pool.submit(run)


@pytest.fixture
def callers(rt: Runtime) -> Callers:
    return Callers(rt)


# --- pulled references -------------------------------------------------------------------------------------


def test_pull_returns_the_id_and_updates_the_view(rt: Runtime, engine: FakeEngine) -> None:
    image_id = engine.registry[APP].id
    assert pull(rt) == image_id
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == image_id


def test_repeated_pull_returns_the_same_id(rt: Runtime) -> None:
    assert pull(rt) == pull(rt)


def test_moved_tag_gives_the_new_image(rt: Runtime, engine: FakeEngine) -> None:
    before = pull(rt)
    moved = engine.publish_image(APP, ImageSettings(user="other"))
    assert pull(rt) == moved != before
    found = rt.view.images.find(APP)
    assert found is not None
    assert (found.id, found.user) == (moved, "other")


def test_image_of_an_earlier_pull_is_not_inspected(rt: Runtime, engine: FakeEngine) -> None:
    image_id = pull(rt)
    engine.calls.clear()
    assert pull(rt) == image_id
    assert {method for method, _ in engine.calls} == {"pull_image"}


def test_an_image_pulled_by_others_is_inspected_alone(rt: Runtime, engine: FakeEngine) -> None:
    pull(rt)
    with engine.held("list_images"):  # the watcher's, for the event of the pull
        assert pull(replace(rt, puller=ImagePuller(manifests=LruCache(capacity=1)))) == engine.registry[APP].id


def test_only_the_new_image_is_inspected(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("list_images"):  # which takes Docker long where there are hundreds
        image_id = pull(rt)
        found = rt.view.images.find(APP)
    assert found is not None
    rt.view.images.refresh()
    assert found == rt.view.images.find(image_id)


@pytest.mark.parametrize("store", [[], [SNAPSHOTTER]], ids=["overlay2", "containerd"])
def test_name_moved_before_the_inspect_gives_the_pulled_image(
    rt: Runtime, engine: FakeEngine, store: list[list[str]]
) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, driver_status=store)
    if store:  # where the manifest's digest is the id
        image = engine.registry[APP]
        engine.registry[APP] = replace(image, id=image.digests[0].partition("@")[2])
    brought = engine.registry[APP].id
    with engine.held("inspect_image") as gate:
        future = Callers(rt).pull()
        gate.wait_entered()
        other = engine.add_image(APP, ImageSettings(user="other"))
    assert future.result(SECONDS) == brought != other
    rt.view.images.refresh()
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == other


def test_an_image_without_its_digest_is_found_by_name(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("inspect_image") as gate:
        future = Callers(rt).pull()
        gate.wait_entered()
        next(image for image in engine.images if image.tags == [APP]).digests.clear()
    assert future.result(SECONDS) == engine.registry[APP].id


def test_name_moved_back_and_forth_gives_the_pulled_image(rt: Runtime, engine: FakeEngine) -> None:
    first = pull(rt)
    second = engine.publish_image(APP, ImageSettings(user="other"))
    assert pull(rt) == second
    assert engine.publish_image(APP) == first
    assert pull(rt) == first
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == first


def test_pull_corrects_an_unnoticed_move_of_a_name(rt: Runtime, engine: FakeEngine) -> None:
    image_id = pull(rt)
    engine.add_image("other.example/app:1")
    mine, other = engine.images
    other.tags, mine.tags = other.tags + mine.tags, []  # the view has not heard of it
    assert pull(rt) == image_id
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == image_id


def test_earlier_list_does_not_hide_the_pulled_image(rt: Runtime, engine: TalkingEngine) -> None:
    image_id = pull(rt)
    engine.remove_image(APP)
    late = engine.late = Late()
    with ThreadPoolExecutor(1) as pool:
        refreshing = pool.submit(rt.view.images.refresh)
        assert late.entered.wait(SECONDS)
        assert pull(rt) == image_id
        late.go_on.set()
        refreshing.result(SECONDS)
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == image_id


def test_later_list_overrides_the_pull(rt: Runtime, engine: TalkingEngine) -> None:
    image_id = ImageId(pull(rt))
    ended = time.monotonic_ns()
    other_id = engine.add_image("other.example/app:1")
    mine, other = (next(image for image in engine.images if image.id == each) for each in (image_id, other_id))
    other.tags, mine.tags = other.tags + mine.tags, []
    late = engine.late = Late()
    with ThreadPoolExecutor(1) as pool:
        refreshing = pool.submit(rt.view.images.refresh)
        assert late.entered.wait(SECONDS)
        assert rt.view.images.confirm(APP, image_id, since=ended) is not None
        late.go_on.set()
        refreshing.result(SECONDS)
    found = rt.view.images.find(APP)
    assert found is not None
    assert found.id == other_id


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("team/app:2", "docker.io/team/app:2"),
        ("r.example:5000/app", "r.example:5000/app:latest"),
        ("r.example/app@sha256:" + "ab" * 32, "r.example/app@sha256:" + "ab" * 32),
        ("r.example/app:1@sha256:" + "ab" * 32, "r.example/app@sha256:" + "ab" * 32),
    ],
)
def test_docker_pulls_the_canonical_reference(rt: Runtime, engine: FakeEngine, written: str, asked: str) -> None:
    with pytest.raises(NotFound):
        pull(rt, written)
    assert engine.calls_of("pull_image") == [asked]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("R.example/App", "capitals"),
        ("r.example/app:", "malformed tag"),
        ("ab" * 32, "is an image id"),
        ("sha256:" + "ab" * 32, "is an image id"),
    ],
)
def test_malformed_references_are_refused(rt: Runtime, engine: FakeEngine, name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        pull(rt, name)
    assert engine.calls_of("pull_image") == []


def test_credentials_reach_docker(rt: Runtime, engine: FakeEngine) -> None:
    pull(rt, username="u", password="p")
    pull(rt, username="u", password="p", server_address="elsewhere.example")
    pull(rt)
    assert engine.pull_auths == [RegistryAuth(username="u", password="p", serveraddress="r.example"), None, None]


def test_image_removed_right_after_the_pull_is_not_found(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("inspect_image") as gate:
        future = Callers(rt).pull()
        gate.wait_entered()
        engine.images.clear()
    with pytest.raises(NotFound, match="removed right after the pull"):
        future.result(SECONDS)


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "auth", "kind", "text"),
    [
        pytest.param(
            RegistryUnavailable(f"pull image {APP}: dial tcp 192.0.2.1:443: connection refused"),
            {},
            RegistryUnavailable,
            f"RegistryUnavailable: pull image {APP}: dial tcp 192.0.2.1:443: connection refused",
            id="unavailable",
        ),
        pytest.param(
            RegistryDenied(f"pull image {APP}: denied: requested access to the resource is denied"),
            {},
            RegistryDenied,
            f"pull image {APP}: unauthorized: r.example requires credentials, but none were given or found: "
            "denied: requested access to the resource is denied",
            id="denied without credentials",
        ),
        pytest.param(
            RegistryDenied(f"pull image {APP}: authentication required"),
            {"username": "u", "password": "p"},
            RegistryDenied,
            f"pull image {APP}: unauthorized: r.example does not accept these credentials: authentication required",
            id="denied with credentials",
        ),
        pytest.param(
            RegistryDenied(f"pull image {APP}: authentication required"),
            {"username": "u", "password": "p", "server_address": "https://other.example:443/v2/"},
            RegistryDenied,
            f"pull image {APP}: unauthorized: r.example requires credentials, but the given credentials are for "
            "other.example: authentication required",
            id="denied with credentials for another registry",
        ),
        pytest.param(
            NotFound(f"pull image {APP}: manifest unknown"),
            {},
            NotFound,
            f"pull image {APP}: r.example has no such image: manifest unknown",
            id="unknown",
        ),
        pytest.param(Unavailable("docker cannot be reached"), {}, Unavailable, "docker cannot be reached", id="docker"),
    ],
)
def test_failures_have_their_class_and_text(
    rt: Runtime, engine: FakeEngine, failure: ShimError, auth: dict[str, str], kind: type[ShimError], text: str
) -> None:
    engine.fail_next("pull_image", failure)
    with pytest.raises(kind) as caught:
        pull(rt, **auth)
    assert str(caught.value) == text


def test_an_echoed_secret_is_neither_shown_nor_kept_as_the_cause(rt: Runtime, engine: FakeEngine) -> None:
    engine.fail_next("pull_image", RegistryDenied("login of u with s3cret failed"))
    with pytest.raises(RegistryDenied, match=r"login of u with \*\*\* failed") as caught:
        pull(rt, username="u", password="s3cret")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_log_of_a_pull_shows_no_secret(rt: Runtime, engine: FakeEngine) -> None:
    with capture_logs() as logs:
        pull(rt, username="u", password="s3cret")
    assert "pulled image" in [line["event"] for line in logs]
    assert "s3cret" not in str(logs)


# --- silence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        [],
        [PullProgress(id="a", status="Downloading", progress_detail={"current": 5})],
        [PullProgress(id="a", status="Extracting"), PullProgress(id="b", status="Pulling fs layer")],
        [PullProgress(id="a", status="Pull complete")],
        [BEGUN, PullProgress(id="a", status="Retrying in 61 seconds")],
        [BEGUN, *(PullProgress(id=each, status=f"Retrying in {wait} seconds") for each, wait in [("a", 0), ("b", 61)])],
    ],
    ids=["before the manifest", "in a layer", "in one of two layers", "before the end", "long wait", "waits"],
)
def test_stalled_pull_is_aborted(rt: Runtime, engine: TalkingEngine, says: list[PullProgress]) -> None:
    engine.says = says
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable) as caught:
        pull(patient(rt, 0.05))
    assert str(caught.value) == f"RegistryUnavailable: pull image {APP}: no progress for 0.05 s"


@pytest.mark.parametrize(
    ("patience", "says"),
    [
        (0.05, [PullProgress(id="a", status="Extracting", progress_detail={"current": 5})]),
        (0.05, [PullProgress(id="a", status="Verifying Checksum")]),
        (0, []),
        (0, [RETRYING]),
        (0.05, [BEGUN, PullProgress(id="a", status="Downloading", progress_detail={"current": 5}), RETRYING]),
        (0.05, [BEGUN, *(PullProgress(id=layer, status="Retrying in 50 seconds") for layer in "abc")]),
    ],
    ids=["extraction", "checksum", "no bound", "no bound and a retry", "retry of Docker", "retries side by side"],
)
def test_pull_survives_tolerated_silence(
    rt: Runtime, engine: TalkingEngine, callers: Callers, patience: float, says: list[PullProgress]
) -> None:
    engine.says = says
    with engine.held("pull_image") as gate:
        future = Callers(patient(rt, patience)).pull()
        gate.wait_entered()
        with pytest.raises(TimeoutError):
            future.result(0.3)
    assert future.result(SECONDS) == engine.registry[APP].id


class Moving(ProgressClock):
    """Pulls that share a download; only one of them makes progress."""

    @property
    def at(self) -> float:
        return time.monotonic()

    @at.setter
    def at(self, moment: float) -> None:
        pass


FS_LAYER = PullProgress(id="a", status="Pulling fs layer")
WAITING = PullProgress(id="a", status="Waiting")
DOWNLOADING = PullProgress(id="b", status="Downloading", progress_detail={"current": 5})
ASKED_AGAIN = PullProgress(id="a", status="Retrying in 0 seconds")


@pytest.mark.parametrize(
    ("motion", "says"),
    [
        (ProgressClock(), [FS_LAYER, WAITING]),
        (ProgressClock(), [FS_LAYER, WAITING, PullProgress(id="b", status="Extracting")]),
        (Moving(), [FS_LAYER]),
        (Moving(), [FS_LAYER, WAITING]),
    ],
    ids=["pulls we do not see", "beside extraction", "joined one that was given up", "pulls that move on"],
)
def test_queued_pull_is_not_aborted(
    rt: Runtime, engine: TalkingEngine, monkeypatch: pytest.MonkeyPatch, motion: ProgressClock, says: list[PullProgress]
) -> None:
    monkeypatch.setattr(stall_timeout, "QUEUED_FACTOR_OTHER", 1000)
    monkeypatch.setattr(stall_timeout, "QUEUED_FACTOR_OWN", 1000)
    engine.says = [BEGUN, *says]
    with engine.held("pull_image") as gate:
        future = Callers(replace(patient(rt, 0.05), puller=ImagePuller(progress=motion))).pull()
        gate.wait_entered()
        with pytest.raises(TimeoutError):
            future.result(0.3)
    assert future.result(SECONDS) == engine.registry[APP].id


@pytest.mark.parametrize(
    ("motion", "says"),
    [
        (Moving(), []),
        (Moving(), [DOWNLOADING]),
        (Moving(), [FS_LAYER, WAITING, DOWNLOADING]),
        (Moving(), [FS_LAYER, WAITING, ASKED_AGAIN]),
        (Moving(), [PullProgress(id="a", status="Pull complete")]),
        (ProgressClock(), [FS_LAYER]),
    ],
    ids=["manifest", "layer", "layer and one that waits", "asked again", "end", "no progress"],
)
def test_stalled_pull_is_aborted_while_others_progress(
    rt: Runtime, engine: TalkingEngine, motion: ProgressClock, says: list[PullProgress]
) -> None:
    engine.says = [BEGUN, *says]
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable, match=r"no progress for 0\.05 s$"):
        pull(replace(patient(rt, 0.05), puller=ImagePuller(progress=motion)))


@pytest.mark.parametrize("says", [[FS_LAYER], [FS_LAYER, WAITING]])
def test_the_containerd_store_has_no_queue(rt: Runtime, engine: TalkingEngine, says: list[PullProgress]) -> None:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, driver_status=[SNAPSHOTTER])
    engine.says = [BEGUN, *says]
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable, match="no progress for"):
        pull(replace(patient(rt, 0.05), puller=ImagePuller(progress=Moving())))


@pytest.mark.parametrize("motion", [ProgressClock(), Moving()], ids=["pulls we do not see", "pulls that move on"])
def test_queued_pull_is_aborted_eventually(rt: Runtime, engine: TalkingEngine, motion: ProgressClock) -> None:
    engine.says = [BEGUN, FS_LAYER, WAITING]
    words = r"no progress for \d+ s, while Docker queued it behind other pulls \(max-concurrent-downloads\)$"
    began = time.monotonic()
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable, match=words):
        pull(replace(patient(rt, 0.01), puller=ImagePuller(progress=motion)))
    assert time.monotonic() - began >= 0.01 * (
        stall_timeout.QUEUED_FACTOR_OTHER if type(motion) is ProgressClock else stall_timeout.QUEUED_FACTOR_OWN
    )


def test_progress_is_shared_by_all_pulls(rt: Runtime, engine: TalkingEngine) -> None:
    began = time.monotonic()
    engine.says = [DOWNLOADING]
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable):
        pull(patient(rt, 0.05))
    ended = rt.puller.progress.at
    assert began <= ended
    pull(rt)
    assert rt.puller.progress.at > ended


def test_pull_works_after_an_aborted_pull(rt: Runtime, engine: FakeEngine) -> None:
    with engine.held("pull_image"), pytest.raises(RegistryUnavailable):
        pull(patient(rt, 0.05))
    assert pull(rt) == engine.registry[APP].id


def test_slow_pull_is_logged(rt: Runtime, engine: TalkingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_timeout, "_REPORT_SECONDS", 0.0)
    engine.says = [
        PullProgress(id="a", status="Downloading", progress_detail={"current": 5, "total": 9}),
        PullProgress(id="a", status="Downloading", progress_detail={"current": 5, "total": 9}),
        PullProgress(id="b", status="Already exists"),
    ]
    with capture_logs() as logs:
        pull(rt)
    lines = [line for line in logs if line["event"] == "pulling image"]
    reported = [(line["log_level"], line["step"], line["layers"], line["bytes"]) for line in lines]
    assert reported[:2] == [("info", "Downloading", "0/1", 5), ("info", "Already exists", "1/2", 5)]


# --- credentials of the node ------------------------------------------------------------------------------


class AskingEngine(TalkingEngine):
    """A fake Engine whose registry accepts a single password, and answers every other with a specific error."""

    def __init__(self) -> None:
        super().__init__()
        self.publish_image(APP)
        self.wants = "right"
        self.refusals: dict[str, ShimError] = {}
        self.auths: list[RegistryAuth | None] = []

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        self.auths.append(auth)
        password = auth.password if auth is not None else ""
        if password != self.wants:
            raise self.refusals.get(password) or RegistryDenied(f"denied for {password!r}")
        super().pull_image(reference, auth=auth, progress=progress)


class TestNode:
    @pytest.fixture
    def engine(self) -> AskingEngine:
        return AskingEngine()

    @pytest.fixture
    def node(self, rt: Runtime, tmp_path: Path) -> Callable[..., Runtime]:
        def made(**passwords: str) -> Runtime:
            """Return a node with these passwords, by the path they are for."""
            file = tmp_path / "config.json"
            auths = {
                f"r.example/{path.replace('_', '/')}".rstrip("/"): {"username": "u", "password": password}
                for path, password in passwords.items()
            }
            file.write_bytes(msgspec.json.encode({"auths": auths}))
            return replace(rt, puller=ImagePuller(keyring=Keyring(paths=[file])))

        return made

    def test_keyring_is_used_for_a_pull_without_credentials(
        self, node: Callable[..., Runtime], engine: AskingEngine
    ) -> None:
        for given in (None, pb.AuthConfig(), pb.AuthConfig(server_address="r.example")):
            pull_image(node(team="right"), image=pb.ImageSpec(image=APP), auth=given)
        assert engine.auths == [RegistryAuth(username="u", password="right", serveraddress="r.example")] * 3

    @pytest.mark.parametrize("server", ["", "other.example"])
    def test_keyring_is_not_used_for_a_pull_with_credentials(
        self, node: Callable[..., Runtime], engine: AskingEngine, server: str
    ) -> None:
        with pytest.raises(RegistryDenied):
            pull(node(team="right"), username="u", password="wrong", server_address=server)
        assert "right" not in {auth.password for auth in engine.auths if auth is not None}

    @pytest.mark.parametrize(
        "kind",
        [RegistryDenied, NotFound, RegistryErrorUnknown, TooManyRequests],
        ids=["denied", "hidden", "unclear", "too many requests"],
    )
    def test_all_matching_credentials_are_tried_in_turn(
        self, node: Callable[..., Runtime], engine: AskingEngine, kind: type[ShimError]
    ) -> None:
        engine.refusals = {"wr0ng": kind("no such thing for wr0ng")}
        with capture_logs() as logs:
            pull(node(team_app="wr0ng", team="right", other="never"))
        assert [auth.password for auth in engine.auths if auth is not None] == ["wr0ng", "right"]
        sources = [line["credentials"] for line in logs if line["event"] == "pulled image"]
        assert [source.partition(" for ")[2] for source in sources] == ["r.example/team"]
        assert not [word for word in ("wr0ng", "right") if word in str(logs)]

    def test_last_refusal_is_raised_if_all_credentials_fail(
        self, node: Callable[..., Runtime], engine: AskingEngine
    ) -> None:
        with pytest.raises(
            RegistryDenied, match=r"does not accept the credentials of \S+ for r.example/team: "
        ) as caught:
            pull(node(team_app="wr0ng", team="wr1ng"))
        assert "wr1ng" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert len(engine.auths) == 2

    @pytest.mark.parametrize("busy", ["wr0ng", "wr1ng"])
    def test_too_many_requests_is_raised_over_other_refusals(
        self, node: Callable[..., Runtime], engine: AskingEngine, busy: str
    ) -> None:
        engine.refusals = {busy: TooManyRequests("toomanyrequests: slow down")}
        with pytest.raises(RegistryUnavailable, match=r"^RegistryUnavailable: pull image \S+: toomanyrequests: slow"):
            pull(node(team_app="wr0ng", team="wr1ng"))
        assert len(engine.auths) == 2

    def test_unknown_refusals_are_raised_without_secrets(
        self, node: Callable[..., Runtime], engine: AskingEngine
    ) -> None:
        unclear = RegistryErrorUnknown(f"pull image {APP}: sent an HTTP request, wr0ng")
        engine.refusals = {"wr0ng": unclear}
        with pytest.raises(RegistryErrorUnknown, match=rf"^pull image {APP}: sent an HTTP request, \*\*\*$"):
            pull(node(team="wr0ng"))

    def test_unavailable_registry_ends_the_search(self, node: Callable[..., Runtime], engine: AskingEngine) -> None:
        engine.refusals = {"wr0ng": RegistryUnavailable("connection refused")}
        with pytest.raises(RegistryUnavailable, match="connection refused"):
            pull(node(team_app="wr0ng", team="right"))
        assert len(engine.auths) == 1

    def test_other_failures_keep_their_class_and_show_no_secret(
        self, node: Callable[..., Runtime], engine: AskingEngine
    ) -> None:
        engine.refusals = {"wr0ng": ShimError(f"pull image {APP}: teapot said wr0ng")}
        with pytest.raises(ShimError, match=rf"^pull image {APP}: teapot said \*\*\*$"):
            pull(node(team="wr0ng"))

    def test_the_first_login_takes_effect_at_once(
        self, node: Callable[..., Runtime], engine: AskingEngine, tmp_path: Path
    ) -> None:
        rt = node(team="right")
        (tmp_path / "config.json").rename(tmp_path / "later")
        for _ in range(2):
            with pytest.raises(RegistryDenied, match="requires credentials, but none were given or found"):
                pull(rt)
        (tmp_path / "later").rename(tmp_path / "config.json")
        pull(rt)
        pull(rt)
        assert [auth and auth.password for auth in engine.auths] == [None, None, None, "right", "right"]

    def test_pull_without_any_credentials_is_tried(self, node: Callable[..., Runtime], engine: AskingEngine) -> None:
        engine.wants = ""
        pull(node(other="right"))
        assert engine.auths == [None]


# --- several callers --------------------------------------------------------------------------------------


def test_two_callers_share_one_pull(rt: Runtime, engine: FakeEngine, callers: Callers) -> None:
    with engine.held("pull_image") as gate:
        futures = [callers.pull() for _ in range(3)]
        gate.wait_entered()
        with pytest.raises(TimeoutError):
            futures[2].result(0.1)
    assert {future.result(SECONDS) for future in futures} == {engine.registry[APP].id}
    assert engine.calls_of("pull_image") == [APP]


def test_other_credentials_start_another_pull(engine: FakeEngine, callers: Callers) -> None:
    with engine.held("pull_image"):
        futures = [callers.pull(username=user) for user in ("a", "b")]
        for future in futures:
            with pytest.raises(TimeoutError):
                future.result(0.1)
    assert len({future.result(SECONDS) for future in futures}) == 1
    assert engine.calls_of("pull_image") == [APP, APP]


def test_pull_continues_when_a_caller_leaves(engine: FakeEngine, callers: Callers) -> None:
    leaving = Scope()
    with engine.held("pull_image") as gate:
        first, second = callers.pull(scope=leaving), callers.pull()
        gate.wait_entered()
        with pytest.raises(TimeoutError):
            second.result(0.1)
        leaving.cancel()
    assert second.result(SECONDS) == engine.registry[APP].id
    with pytest.raises(Cancelled, match=f"pull image {APP}"):
        first.result(SECONDS)
    assert engine.calls_of("pull_image") == [APP]


def test_pull_ends_when_the_last_caller_leaves(rt: Runtime, engine: TalkingEngine, callers: Callers) -> None:
    leaving = Scope()
    with engine.held("pull_image") as gate:
        future = callers.pull(scope=leaving)
        gate.wait_entered()
        leaving.cancel()
        with pytest.raises(Cancelled):
            future.result(SECONDS)
        assert engine.cut_short.wait(SECONDS)
    assert rt.view.images.find(APP) is None
    assert pull(rt) == engine.registry[APP].id


def test_expired_deadline_starts_no_pull(rt: Runtime, engine: TalkingEngine) -> None:
    with engine.held("pull_image") as gate:
        seconds = 0.01
        while not gate.entered.is_set():  # it may pass before the pull has begun
            with deadline.entered(Scope(seconds=seconds)), pytest.raises(DeadlineExceeded):
                pull(rt)
            seconds *= 2
        assert engine.cut_short.wait(SECONDS)
