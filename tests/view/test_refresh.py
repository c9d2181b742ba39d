"""Workers inspect queued objects, and a hung inspect does not delay others."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import ShimError, Unavailable
from shim.engine.answers import ContainerInspect, ImageInspect
from shim.view.node_view import NodeView
from shim.view.refresh import UNKNOWN_AFTER, WORKERS, Refresher
from tests.fakes.engine import FakeEngine
from tests.view.late import LateEngine
from tests.view.samples import create_container, create_sandbox, inspects, unset_clock
from tests.waits import SECONDS, wait_change, wait_until


@pytest.fixture
def view(engine: FakeEngine) -> NodeView:
    view = NodeView(engine, clock=unset_clock)
    view.complete_sync(view.begin_sync())
    return view


@contextmanager
def refreshing(view: NodeView, *, inspect_seconds: float) -> Iterator[Refresher]:
    refresher = Refresher(view, inspect_seconds=inspect_seconds, retry_seconds=0.001)
    refresher.start()
    try:
        yield refresher
    finally:
        refresher.stop()


@pytest.fixture
def refresher(view: NodeView) -> Iterator[Refresher]:
    with refreshing(view, inspect_seconds=30) as refresher:
        yield refresher


def test_a_queued_container_is_published(engine: FakeEngine, view: NodeView, refresher: Refresher) -> None:
    sandbox_id = create_sandbox(engine)
    with view.subscribe() as changes:
        refresher.enqueue(sandbox_id)
        assert wait_change(changes).record.id == sandbox_id
    assert view.sandbox(sandbox_id).state.running


def test_an_image_event_during_an_inspect_for_another_cause_stays_unseen() -> None:
    """As after a list, or after a failed inspect. Until the next inspect, any tag may have moved."""
    engine = LateEngine()
    view = NodeView(engine)
    image_id = engine.add_image("busybox")
    refresher = Refresher(view, inspect_seconds=30, retry_seconds=0.001)
    engine.after_image.append(lambda: refresher.enqueue_image(image_id, stamp=time.time_ns()))
    refresher.enqueue(f"image {image_id}")
    refresher.start()
    try:
        wait_until(lambda: not engine.after_image)
        wait_until(lambda: view.images.last_known(image_id) is not None)
        wait_until(lambda: not refresher.row()["processing"])
        assert view.images.has_unseen_events()
        wait_until(lambda: not view.images.has_unseen_events())
    finally:
        refresher.stop()


@pytest.mark.parametrize(
    ("age", "inspected"), [(1, 0), (-1, 1), (None, 1)], ids=["older than the last inspect", "newer", "of unknown age"]
)
def test_a_change_is_inspected_unless_an_inspect_has_begun_since(
    monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, view: NodeView, age: int | None, inspected: int
) -> None:
    monkeypatch.setattr("shim.view.refresh.WORKERS", 1)  # keys are then processed in order
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id)
    began = time.time_ns()
    view.refresh_container(container_id)
    before = inspects(engine)
    stamp = 0 if age is None else began - age if age > 0 else time.time_ns()
    with refreshing(view, inspect_seconds=30) as refresher, view.subscribe() as changes:
        refresher.enqueue_changed(container_id, stamp=stamp, after=0)
        refresher.enqueue(sandbox_id)
        assert wait_change(changes).record.id == sandbox_id
    assert inspects(engine) - before == inspected + 1


def test_the_exit_of_a_container_is_logged_once_with_its_names(engine: FakeEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id, start=True)
    view.refresh_container(sandbox_id)
    names = {"name": "app", "pod": "shop/web"}
    with capture_logs() as logs:
        view.refresh_container(container_id)
        assert view.names_of(container_id) == names
        engine.exit_container(container_id)
        view.refresh_container(container_id)
        view.refresh_container(container_id)

    ended = {"log_level": "info", "event": "container ended", "container": container_id, **names}
    assert [{key: line[key] for key in ended} for line in logs] == [ended]
    assert {"exit_code", "reason"} <= logs[0].keys()


def test_an_exit_before_the_first_sync_is_not_logged(engine: FakeEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    engine.exit_container(container_id)
    with capture_logs() as logs:
        view.refresh_container(container_id)

    assert logs == []
    assert view.names_of("unknown") == {}


def test_a_failed_inspect_is_retried_despite_an_earlier_inspect(
    engine: FakeEngine, view: NodeView, refresher: Refresher
) -> None:
    sandbox_id = create_sandbox(engine)
    view.refresh_container(sandbox_id)
    engine.exit_container(sandbox_id)
    engine.fail_next("inspect_container", ShimError("no luck"))
    refresher.enqueue_changed(sandbox_id, stamp=time.time_ns(), after=0)
    wait_until(lambda: not view.sandbox(sandbox_id).state.running)


def test_queued_images_are_listed(engine: FakeEngine, view: NodeView, refresher: Refresher) -> None:
    engine.add_image("busybox")
    refresher.enqueue_images()
    wait_until(view.images.all)


def test_an_event_with_an_invalid_image_name_is_ignored(
    engine: FakeEngine, view: NodeView, refresher: Refresher
) -> None:
    refresher.enqueue_image("not://A Reference", stamp=0)
    image_id = engine.add_image("busybox")
    refresher.enqueue_image(image_id, stamp=0)
    wait_until(lambda: view.images.last_known(image_id))
    assert refresher.row()["failing"] == 0


def test_an_image_published_after_its_event_is_not_inspected(
    engine: FakeEngine, view: NodeView, refresher: Refresher
) -> None:
    image_id, other = engine.add_image("busybox"), engine.add_image("other")
    stamp = time.time_ns()
    view.images.lookup("busybox")
    refresher.enqueue_image(image_id, stamp=stamp)
    refresher.enqueue_image("busybox", stamp=stamp)
    refresher.enqueue_image(other, stamp=stamp)
    wait_until(lambda: view.images.last_known(other))
    assert engine.calls_of("inspect_image") == ["busybox", other]


class SlowImages(FakeEngine):
    """An Engine whose inspects of images take as long as with the containerd image store."""

    def inspect_image(self, reference: str) -> ImageInspect:
        answer = super().inspect_image(reference)
        time.sleep(0.05)
        return answer


def test_a_list_comes_first_if_many_images_wait_for_their_inspect() -> None:
    """As after a `docker load` of thousands: their inspects would take hours at their share of Docker's time."""
    engine = SlowImages()
    view = NodeView(engine)
    view.complete_sync(view.begin_sync())
    with refreshing(view, inspect_seconds=30) as refresher:
        refresher.enqueue_images_now()
        wait_until(view.images.is_listed)
        for number in range(30):
            refresher.enqueue_image(engine.add_image(f"built.example/app:{number}"), stamp=time.time_ns())
        wait_until(lambda: engine.calls_of("inspect_image"))

        def all_known() -> bool:
            refresher.enqueue_images()  # as the view does each minute
            return len(view.images.all()) == len(engine.images) and not view.images.has_unseen_events()

        wait_until(all_known)
        inspects = len(engine.calls_of("inspect_image"))
        assert inspects < 30
        later = engine.add_image("built.example/later:1")
        refresher.enqueue_image(later, stamp=time.time_ns())
        wait_until(lambda: view.images.last_known(later))
        assert len(engine.calls_of("list_images")) <= 3


def test_hung_inspects_do_not_delay_others(engine: FakeEngine, view: NodeView, refresher: Refresher) -> None:
    sandbox_id = create_sandbox(engine)
    hanging = [create_container(engine, sandbox_id, name=f"hangs-{n}") for n in range(WORKERS - 1)]
    with ExitStack() as gates:
        for container_id in hanging:
            gate = gates.enter_context(engine.held("inspect_container", container_id))
            refresher.enqueue(container_id)
            gate.wait_entered()
        with view.subscribe() as changes:
            refresher.enqueue(sandbox_id)
            assert wait_change(changes).record.id == sandbox_id
        assert view.containers() == ()
    wait_until(lambda: len(view.containers()) == len(hanging))


def test_a_container_whose_inspects_fail_becomes_unknown(engine: FakeEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    tries_before = inspects(engine)
    with engine.held("inspect_container", container_id), refreshing(view, inspect_seconds=0.01) as refresher:
        refresher.enqueue(container_id)
        wait_until(lambda: not view.container(container_id).state.running)
        assert inspects(engine) - tries_before > UNKNOWN_AFTER
        unknown = view.container(container_id).state
    assert (unknown.phase, unknown.pid) == (pb.CONTAINER_UNKNOWN, 0)
    assert "does not answer" in unknown.message


class FailingEngine(FakeEngine):
    """Fails the inspects of a container in turn, and records at each whether the view shows it as running."""

    def __init__(self) -> None:
        super().__init__()
        self.view = NodeView(self, clock=unset_clock)
        self.view.complete_sync(self.view.begin_sync())
        self.container_id = create_container(self, create_sandbox(self), start=True)
        self.view.refresh_container(self.container_id)
        self.failures: list[ShimError] = []
        self.seen_running: list[bool] = []
        self.enough = threading.Event()
        """Set by the first inspect after the failing inspects."""

    def inspect_container(self, container_id: str) -> ContainerInspect:
        if self.view.last_known(container_id) is not None:
            self.seen_running.append(self.view.container(container_id).state.running)
            if self.failures:
                raise self.failures.pop(0)
            self.enough.set()
        return super().inspect_container(container_id)


def test_failures_while_docker_is_unreachable_do_not_count() -> None:
    engine = FailingEngine()
    engine.failures = [*[Unavailable("docker is away")] * (UNKNOWN_AFTER + 1), ShimError("docker is slow")]
    with refreshing(engine.view, inspect_seconds=30) as refresher:
        refresher.enqueue(engine.container_id)
        assert engine.enough.wait(SECONDS)
    assert engine.seen_running == [True] * (UNKNOWN_AFTER + 3)


def test_a_successful_inspect_resets_the_failures() -> None:
    engine = FailingEngine()
    refresher = Refresher(engine.view, inspect_seconds=30, retry_seconds=0.001)
    engine.failures = [ShimError("docker is slow")] * UNKNOWN_AFTER
    for _ in range(UNKNOWN_AFTER + 1):
        refresher.refresh_first(engine.container_id, seconds=30, fallback=None)
    engine.failures = [ShimError("docker is slow")]
    engine.enough.clear()
    refresher.enqueue(engine.container_id)
    refresher.start()
    assert engine.enough.wait(SECONDS)
    refresher.stop()
    assert all(engine.seen_running)


def test_a_sandbox_whose_inspects_fail_keeps_its_state(engine: FakeEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    known = view.refresh_container(sandbox_id)
    before = inspects(engine)
    with engine.held("inspect_container", sandbox_id), refreshing(view, inspect_seconds=0.01) as refresher:
        refresher.enqueue(sandbox_id)
        wait_until(lambda: inspects(engine) - before > UNKNOWN_AFTER + 2)
        assert view.sandbox(sandbox_id) == known


def test_an_unknown_container_recovers_when_docker_answers(engine: FakeEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    with refreshing(view, inspect_seconds=0.01) as refresher:
        with engine.held("inspect_container", container_id):
            refresher.enqueue(container_id)
            wait_until(lambda: not view.container(container_id).state.running)
        wait_until(lambda: view.container(container_id).state.running)


@pytest.mark.parametrize("error", [ShimError("500"), Unavailable("refused"), ValueError("who would have thought")])
def test_a_failure_of_any_kind_is_retried(
    engine: FakeEngine, view: NodeView, refresher: Refresher, error: Exception
) -> None:
    sandbox_id = create_sandbox(engine)
    engine.fail_next("inspect_container", error)
    with view.subscribe() as changes:
        refresher.enqueue(sandbox_id)
        assert wait_change(changes).record.id == sandbox_id


def test_the_first_inspect_has_its_own_bound_and_is_retried_later(
    engine: FakeEngine, view: NodeView, refresher: Refresher
) -> None:
    sandbox_id = create_sandbox(engine)
    with engine.held("inspect_container", sandbox_id) as gate:
        refresher.refresh_first(sandbox_id, seconds=0.01, fallback=None)
        assert view.sandboxes() == ()
        gate.wait_entered()
    wait_until(view.sandboxes)


def test_the_first_inspect_raises_errors_of_the_connection(engine: FakeEngine, refresher: Refresher) -> None:
    engine.fail_next("inspect_container", Unavailable("docker is gone"))
    with pytest.raises(Unavailable):
        refresher.refresh_first("any", seconds=1, fallback=None)


def test_stop_ends_hung_inspects(engine: FakeEngine, view: NodeView) -> None:
    before = set(threading.enumerate())
    sandbox_id = create_sandbox(engine)
    with engine.held("inspect_container") as gate, refreshing(view, inspect_seconds=1000) as refresher:
        refresher.enqueue(sandbox_id)
        gate.wait_entered()
    assert set(threading.enumerate()) <= before
