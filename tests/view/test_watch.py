"""The view follows Docker's changes and outages, and refuses reads while it cannot."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.dockerd.facts import EngineFacts
from shim.domain import labels
from shim.domain.errors import NotFound, ShimError, Unavailable
from shim.engine.answers import ContainerSummary, Event, ImageSettings
from shim.view import image_pace, refresh, translate
from shim.view.availability import NOT_SYNCED
from shim.view.changes import CREATED, DELETED, STARTED, STOPPED
from shim.view.image_view import ImagesUnknown
from shim.view.node_view import NodeView
from shim.view.records import Change, Record
from shim.view.watch import Ended, Timings, Watcher
from tests.fakes.engine import FakeEngine
from tests.threads import no_thread_for
from tests.view.samples import create_container, create_sandbox, create_stranger, unset_clock
from tests.waits import SECONDS, wait_change, wait_until

EAGER = Timings(
    resync=1000,
    inspect_timeout=30,
    event_delay=0.001,
    sync_inspect_timeout=30,
    retry_delay=0.001,
    min_reconnect_delay=0.001,
    max_reconnect_delay=0.01,
)


class BadLine(FakeEngine):
    """An Engine whose event stream is broken until `repair`, and may repeat or drop events."""

    def __init__(self, *, copies: list[int] | None = None) -> None:
        super().__init__()
        self._copies = iter(copies or ())

    @contextmanager
    def events(self, *, since: int | None) -> Iterator[Iterator[Event]]:
        with super().events(since=since) as stream:
            yield (event for event in stream for _ in range(next(self._copies, 1)))


@contextmanager
def watching(
    engine: FakeEngine,
    *,
    timings: Timings = EAGER,
    sync_timeout: float = SECONDS,
    # The containers of the fake have no processes that could exit.
    ended: Ended = lambda _: False,
) -> Iterator[NodeView]:
    view = NodeView(engine, sync_timeout=sync_timeout, clock=unset_clock)
    watcher = Watcher(engine, view, timings=timings, ended=ended)
    watcher.start()
    try:
        yield view
    finally:
        watcher.stop()


def is_out_of_reach(view: NodeView) -> bool:
    return bool(view.stats().outage)


def reported(change: Change) -> tuple[pb.ContainerEventType, str]:
    return change.kind, change.record.id


# At the start


def test_existing_containers_are_known_to_the_first_read(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id)
    stranger = create_stranger(engine)
    with watching(engine) as view:
        assert [record.id for record in view.sandboxes()] == [sandbox_id]
        assert [record.id for record in view.containers()] == [container_id]
        assert len(view.images.all()) == 1
    assert stranger not in engine.calls_of("inspect_container")


def test_legacy_pods_are_known(engine: FakeEngine) -> None:
    engine.add_image("busybox")
    tags = {labels.TYPE: labels.TYPE_SANDBOX, labels.CONTAINER_NAME: "POD", "app": "old", "annotation.a": "b"}
    old = engine.create_container(name="k8s_POD_old_shop_uid-1_3", body={"Image": "busybox", "Labels": tags})
    with watching(engine) as view:
        record = view.sandbox(old)
    assert record.legacy
    assert record.config.metadata == pb.PodSandboxMetadata(name="old", namespace="shop", uid="uid-1", attempt=3)


def test_the_event_stream_starts_before_the_list() -> None:
    asked: list[tuple[str, int]] = [("start", time.time_ns())]

    class Noting(FakeEngine):
        @contextmanager
        def events(self, *, since: int | None) -> Iterator[Iterator[Event]]:
            asked.append(("events", since or 0))
            with super().events(since=since) as stream:
                yield stream

        def list_containers(self) -> list[ContainerSummary]:
            asked.append(("list", time.time_ns()))
            return super().list_containers()

    with watching(Noting()) as view:
        view.sandboxes()
    assert [what for what, _ in asked] == ["start", "events", "list"]
    assert asked == sorted(asked, key=lambda entry: entry[1])


def test_a_docker_that_starts_later_is_found(engine: FakeEngine) -> None:
    create_sandbox(engine)
    engine.disconnect()
    with watching(engine) as view:
        with pytest.raises(Unavailable, match="Docker cannot be reached"):
            view.sandboxes()
        engine.reconnect()
        wait_until(lambda: not is_out_of_reach(view))
        assert len(view.sandboxes()) == 1


def test_a_hung_container_delays_the_sync_only_by_its_bound(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    hangs = create_container(engine, sandbox_id, name="hangs", start=True)
    fine = create_container(engine, sandbox_id, name="fine", start=True)
    timings = Timings(
        resync=1000, sync_inspect_timeout=0.05, retry_delay=1
    )  # a third failed inspect would make it UNKNOWN
    with engine.held("inspect_container", hangs) as gate, watching(engine, timings=timings) as view:
        wait_until(lambda: view.container(fine).state.pid)  # its inspect may be late as well on a busy machine
        found = view.container(hangs).state
        assert (found.phase, found.from_list_only, found.pid) == (pb.CONTAINER_RUNNING, True, 0)
        engine.release(gate)
        wait_until(lambda: view.container(hangs).state.pid)


# Events


def test_changes_by_other_clients_are_published_at_once(engine: FakeEngine) -> None:
    with watching(engine) as view, view.subscribe() as changes:
        sandbox_id = create_sandbox(engine, start=False)
        assert reported(wait_change(changes)) == (CREATED, sandbox_id)
        engine.start_container(sandbox_id)
        assert reported(wait_change(changes)) == (STARTED, sandbox_id)
        engine.exit_container(sandbox_id, exit_code=3)
        stopped = wait_change(changes)
        assert reported(stopped) == (STOPPED, sandbox_id)
        assert (stopped.record.state.exit_code, stopped.record.state.reason) == (3, "Error")
        engine.remove_container(sandbox_id)
        assert reported(wait_change(changes)) == (DELETED, sandbox_id)
        assert view.sandboxes() == ()


def test_an_oom_kill_is_the_reason_of_the_exit(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    with watching(engine) as view, view.subscribe() as changes:
        engine.exit_container(sandbox_id, exit_code=137, oom_killed=True)
        assert wait_change(changes).record.state.reason == "OOMKilled"


def test_an_oom_kill_that_docker_reports_late_is_published(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    engine.exit_container(sandbox_id, exit_code=137)
    with watching(engine) as view:
        assert view.sandbox(sandbox_id).state.reason == "Error"
        engine.containers[sandbox_id].oom_killed = True
        engine.emit("container", "oom", sandbox_id, {"name": "k8s_POD_web"})
        wait_until(lambda: view.sandbox(sandbox_id).state.reason == "OOMKilled")


def test_updates_and_renames_are_published(engine: FakeEngine) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    with watching(engine) as view:
        assert view.container(container_id).host.memory == 0
        engine.update_container(container_id, body={"Memory": 64 << 20})
        wait_until(lambda: view.container(container_id).host.memory == 64 << 20)
        engine.rename_container(container_id, name="mine")
        wait_until(lambda: view.container(container_id).name == "mine")


def test_new_and_removed_images_are_published(engine: FakeEngine) -> None:
    image_id = engine.publish_image("registry.example/app:v1")
    with watching(engine) as view:
        assert view.images.find("registry.example/app:v1") is None
        engine.pull_image("registry.example/app:v1", auth=None, progress=lambda _: None)
        wait_until(lambda: view.images.find(image_id))
        engine.remove_image("registry.example/app:v1")
        wait_until(lambda: view.images.all() == ())


def test_irrelevant_events_cause_no_inspect(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    with watching(engine) as view, view.subscribe() as changes:
        before = len(engine.calls)
        for action in (
            "exec_create: sh -c true",
            "exec_start: sh",
            "exec_die",
            "health_status: healthy",
            "kill",
            "top",
        ):
            engine.emit("container", action, sandbox_id, {"name": "k8s_POD_web"})
        engine.emit("container", "start", "0" * 64, {"name": "database"})
        engine.emit("image", "push", "busybox")
        engine.emit("daemon", "reload", "fake")
        engine.emit("container", "destroy", sandbox_id)
        assert reported(wait_change(changes)) == (STOPPED, sandbox_id)
        assert engine.calls[before:] == []
        assert view.stats().last_event_at > 0


@given(copies=st.lists(st.integers(1, 3), max_size=12))
@settings(max_examples=15, deadline=None)
def test_repeated_events_change_nothing(copies: list[int]) -> None:
    engine = BadLine(copies=copies)
    with watching(engine) as view, view.subscribe() as changes:
        sandbox_id = create_sandbox(engine)
        wait_until(lambda: view.sandboxes() and view.sandboxes()[0].state.running)
        engine.exit_container(sandbox_id)
        wait_until(lambda: not view.sandbox(sandbox_id).state.running)
        engine.remove_container(sandbox_id)
        assert [reported(wait_change(changes))[0] for _ in range(4)] == [CREATED, STARTED, STOPPED, DELETED]


def test_the_resync_finds_a_change_without_an_event(engine: FakeEngine) -> None:
    gone, ended = create_sandbox(engine), create_sandbox(engine, attempt=1)
    timings = Timings(resync=0.01)
    with watching(engine, timings=timings) as view:
        assert len(view.sandboxes()) == 2
        engine.add_image("registry.example/app")
        engine.containers[ended].status = "exited"
        del engine.containers[gone]
        wait_until(lambda: view.images.find("registry.example/app"))
        wait_until(lambda: [record.id for record in view.sandboxes()] == [ended])
        wait_until(lambda: not view.sandbox(ended).state.running)
        assert view.stats().resync_seconds_ago is not None


# Exits that Docker misses


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_an_exit_that_docker_misses_is_published(engine: FakeEngine, when: str) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id, start=True)
    gone = {container_id} if when == "at the start" else set()
    timings = Timings(resync=0.05, missed_exit=0.01)
    with watching(engine, timings=timings, ended=lambda record: record.state.running and record.id in gone) as view:
        with view.subscribe() as changes:
            gone.add(container_id)
            assert reported(wait_change(changes)) == (STOPPED, container_id)
        state = view.container(container_id).state
        assert (state.phase, state.exit_code, state.reason) == (pb.CONTAINER_EXITED, 255, "Unknown")
        assert "Docker has missed the exit" in state.message
        assert state.finished_at >= state.started_at
        assert view.sandbox(sandbox_id).state.running
        view.refresh_container(container_id)  # Docker still reports it as running
        assert view.container(container_id).state == state


def test_an_exit_that_docker_reports_in_time_has_dockers_exit_code(engine: FakeEngine) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    gone: set[str] = set()
    refreshed = threading.Event()

    def ended(record: Record) -> bool:
        if record.id not in gone or not record.state.running:
            return False
        refreshed.set()
        return True

    with (
        watching(engine, timings=Timings(resync=0.01, missed_exit=1000), ended=ended) as view,
        view.subscribe() as changes,
    ):
        gone.add(container_id)
        assert refreshed.wait(SECONDS)
        engine.exit_container(container_id, exit_code=3)
        stopped = wait_change(changes)
    assert (stopped.kind, stopped.record.state.exit_code) == (STOPPED, 3)


def test_a_new_run_after_a_missed_exit_is_published(engine: FakeEngine) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    gone = {container_id}
    timings = Timings(resync=0.05, missed_exit=0.01)
    with watching(engine, timings=timings, ended=lambda record: record.state.running and record.id in gone) as view:
        wait_until(lambda: not view.container(container_id).state.running)
        gone.clear()
        engine.containers[container_id].status = "exited"
        with view.subscribe() as changes:
            engine.start_container(container_id)
            assert reported(wait_change(changes)) == (STARTED, container_id)
        assert view.container(container_id).state.running


# Interruptions


def test_a_lost_stream_refuses_reads_until_the_next_sync(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id, start=True)
    with watching(engine, sync_timeout=0) as view:
        wait_until(lambda: not is_out_of_reach(view))
        engine.disconnect()
        wait_until(lambda: is_out_of_reach(view))
        with pytest.raises(Unavailable, match=r"(?i)docker"):
            view.containers()
        engine.exit_container(sandbox_id)
        del engine.containers[container_id]
        with engine.held("inspect_container", sandbox_id) as gate:
            engine.reconnect()
            gate.wait_entered()
            with pytest.raises(Unavailable):
                view.sandbox(sandbox_id)
        wait_until(lambda: not is_out_of_reach(view))
        assert not view.sandbox(sandbox_id).state.running
        with pytest.raises(NotFound):
            view.container(container_id)
        assert view.stats().reconnects == 1


def test_a_stream_that_breaks_during_the_sync_is_reopened(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    with engine.held("inspect_container", sandbox_id) as gate, watching(engine) as view:
        gate.wait_entered()
        engine.disconnect()
        wait_until(lambda: view.stats().outage != NOT_SYNCED)
        engine.release(gate)
        engine.reconnect()
        wait_until(lambda: not is_out_of_reach(view))
        assert view.sandbox(sandbox_id).state.running


def test_before_first_sync_is_called_again_if_the_stream_breaks_meanwhile(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    runs: list[int] = []

    def prepare() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            engine.disconnect()
            wait_until(lambda: deadline.current().cancelled)
            engine.reconnect()
            deadline.current().check("prepare")

    def forgiving() -> None:
        with suppress(ShimError):
            prepare()

    view = NodeView(engine, sync_timeout=SECONDS, clock=unset_clock)
    watcher = Watcher(engine, view, timings=EAGER, ended=lambda _: False, before_first_sync=forgiving)
    watcher.start()
    try:
        wait_until(lambda: not is_out_of_reach(view))
        assert runs == [0, 1]
        assert [record.id for record in view.sandboxes()] == [sandbox_id]
    finally:
        watcher.stop()


def test_on_connect_is_called_for_each_connection(engine: FakeEngine) -> None:
    facts = EngineFacts(engine, restrict_oom_score_adj="false")
    view = NodeView(engine, sync_timeout=SECONDS, clock=unset_clock)
    watcher = Watcher(engine, view, timings=EAGER, ended=lambda _: False, on_connect=facts.refresh)
    watcher.start()
    try:
        wait_until(lambda: not is_out_of_reach(view))
        assert facts.cgroup_driver() == "cgroupfs"
        engine.disconnect()
        wait_until(lambda: is_out_of_reach(view))
        engine.engine_info = msgspec.structs.replace(engine.engine_info, cgroup_driver="systemd")
        engine.reconnect()
        wait_until(lambda: not is_out_of_reach(view))
        assert facts.cgroup_driver() == "systemd"
    finally:
        watcher.stop()


def test_a_lost_stream_refuses_reads_despite_a_call_in_flight() -> None:
    class Deaf(FakeEngine):
        """Its lists ignore a cancelled scope."""

        heard = threading.Event()
        lists = 0

        def list_containers(self) -> list[ContainerSummary]:
            self.lists += 1
            if self.lists > 1:
                self.heard.wait()
            return super().list_containers()

    engine = Deaf()
    with watching(engine, timings=Timings(resync=0.01)) as view:
        try:
            wait_until(lambda: engine.lists == 2)
            assert not is_out_of_reach(view)
            engine.disconnect()
            wait_until(lambda: is_out_of_reach(view))
        finally:
            engine.heard.set()


def test_the_reader_of_a_lost_stream_ends_before_the_next_connection() -> None:
    """Otherwise the end of the lost stream would be taken for the end of the next stream."""
    reading: list[bool] = []
    overlaps: list[int] = []

    class Lingering(FakeEngine):
        @contextmanager
        def events(self, *, since: int | None) -> Iterator[Iterator[Event]]:
            overlaps.append(len(reading))
            with super().events(since=since) as stream:
                yield self._lingering(stream)

        def _lingering(self, stream: Iterator[Event]) -> Iterator[Event]:
            reading.append(True)
            try:
                yield from stream
            finally:
                threading.Event().wait(0.03)
                reading.pop()

    engine = Lingering()
    with watching(engine, timings=Timings(resync=0.01, min_reconnect_delay=0.001)) as view:
        view.sandboxes()
        engine.fail_next("list_containers", Unavailable("no answer"))
        wait_until(lambda: view.stats().reconnects == 1)
    assert overlaps == [0, 0]


def test_subscriptions_end_when_the_stream_is_lost(engine: FakeEngine) -> None:
    with watching(engine) as view, view.subscribe() as changes:
        engine.disconnect()
        with pytest.raises(Unavailable, match="connection to docker was lost"):
            wait_change(changes)


def test_a_failed_resync_reconnects(engine: FakeEngine) -> None:
    """An Engine that does not list its containers is unreachable, although its event stream works."""
    with watching(engine, timings=Timings(resync=0.01, min_reconnect_delay=0.001)) as view:
        view.sandboxes()
        engine.fail_next("list_containers", Unavailable("no answer"))
        wait_until(lambda: view.stats().reconnects == 1)


def test_an_unexpected_error_in_the_view_causes_a_sync(engine: FakeEngine) -> None:
    create_sandbox(engine)
    engine.fail_next("list_containers", ValueError("who would have thought"))
    with watching(engine) as view:
        wait_until(lambda: not is_out_of_reach(view))
        assert len(view.sandboxes()) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_error_in_the_reader_causes_a_sync() -> None:
    class Garbled(FakeEngine):
        streams = 0

        @contextmanager
        def events(self, *, since: int | None) -> Iterator[Iterator[Event]]:
            self.streams += 1
            with super().events(since=since) as stream:
                yield stream if self.streams > 1 else iter([None])  # type: ignore[list-item]

    engine = Garbled()
    create_sandbox(engine)
    with watching(engine) as view:
        wait_until(lambda: engine.streams == 2 and not is_out_of_reach(view))
        assert len(view.sandboxes()) == 1


@pytest.mark.parametrize("method", ["events", "list_containers", "list_images", "inspect_container", "inspect_image"])
def test_stop_ends_all_threads_despite_hung_calls(
    engine: FakeEngine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "LIST_SECONDS", deadline.LONGEST)
    timings = replace(
        EAGER, inspect_timeout=deadline.LONGEST, sync_inspect_timeout=deadline.LONGEST, list_timeout=deadline.LONGEST
    )
    create_sandbox(engine)
    before = set(threading.enumerate())
    with engine.held(method) as gate, watching(engine, timings=timings) as view:
        gate.wait_entered()
    assert set(threading.enumerate()) <= before
    with pytest.raises(Unavailable):
        view.sandboxes()


def test_stop_ends_an_idle_watcher(engine: FakeEngine) -> None:
    before = set(threading.enumerate())
    with watching(engine) as view:
        view.sandboxes()
    assert set(threading.enumerate()) <= before
    with pytest.raises(Unavailable, match="the server is stopping"):
        view.sandboxes()


# A hung Docker, and a failing image store


def refusal(view: NodeView) -> str:
    """Return why reads are refused; empty while they are answered."""
    return view.stats().outage


HUNG = Timings(resync=0.05, list_timeout=0.1, min_reconnect_delay=0.01, max_reconnect_delay=0.05)


def test_an_unanswered_list_without_events_refuses_reads(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    with watching(engine, timings=HUNG, sync_timeout=0) as view:
        wait_until(lambda: not is_out_of_reach(view))
        with engine.held("list_containers") as gate:
            gate.wait_entered()
            assert view.sandbox(sandbox_id).state.running  # answered until then
            wait_until(lambda: "list containers: Docker did not answer within 0.1 s" in refusal(view))
            with pytest.raises(Unavailable, match="Docker hangs or is overloaded"):
                view.sandboxes()
        wait_until(lambda: not is_out_of_reach(view))
        assert view.sandbox(sandbox_id).state.running


def test_an_unanswered_list_with_events_is_requested_again() -> None:
    class Busy(FakeEngine):
        """Sends an event during a list that it does not answer, and answers the next list."""

        busy = False

        def list_containers(self) -> list[ContainerSummary]:
            if self.busy:
                self.busy = False
                self.emit("container", "exec_die", "any", {"name": "k8s_any"})
                with self.held("list_containers"):
                    return super().list_containers()
            return super().list_containers()

    engine = Busy()
    with watching(engine, timings=HUNG) as view:
        view.sandboxes()
        engine.busy = True
        lists = len(engine.calls_of("list_containers"))
        wait_until(lambda: len(engine.calls_of("list_containers")) > lists + 2)
        assert view.stats().reconnects == 0


@pytest.mark.parametrize("method", ["list_containers", "inspect_container"])
def test_the_cause_of_a_failed_sync_is_logged_once_and_returned_to_clients(engine: FakeEngine, method: str) -> None:
    create_sandbox(engine)
    engine.fail_next(method, *[Unavailable("list containers: the disk of docker is gone")] * 20)
    with capture_logs() as logs, watching(engine, sync_timeout=0) as view:
        wait_until(lambda: len(engine.calls_of(method)) > 10)
        with pytest.raises(Unavailable, match="the disk of docker is gone"):
            view.sandboxes()
        wait_until(lambda: not is_out_of_reach(view))
    lost = [line["reason"] for line in logs if line["event"] == "lost connection to Docker"]
    assert lost == ["list containers: the disk of docker is gone"]


def test_the_cause_of_a_failed_resync_is_returned_to_clients(engine: FakeEngine) -> None:
    with watching(
        engine, timings=Timings(resync=0.01, min_reconnect_delay=1, max_reconnect_delay=1), sync_timeout=0
    ) as view:
        wait_until(lambda: not is_out_of_reach(view))
        engine.fail_next("list_containers", ShimError("list containers: layer database is locked (status 500)"))
        wait_until(lambda: refusal(view) == "list containers: layer database is locked (status 500)")


def test_failing_image_lists_do_not_hide_pods(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    image_id = engine.add_image("registry.example/app:v1")
    engine.fail_next("list_images", *[ShimError("list images: layer does not exist (status 500)")] * 1000)
    with capture_logs() as logs, watching(engine) as view:
        assert [record.id for record in view.sandboxes()] == [sandbox_id]
        wait_until(lambda: len(engine.calls_of("list_images")) > 3)
        for question in (view.images.all, lambda: view.images.find("registry.example/app:v1")):
            with pytest.raises(ImagesUnknown, match=r"layer does not exist \(status 500\)"):
                question()
        assert not view.images.is_listed()
        found = view.images.lookup("registry.example/app:v1")
        assert found is not None
        assert found.id == image_id
        assert view.images.last_known("registry.example/app:v1") == found
        engine._failures.clear()
        wait_until(view.images.is_listed)
        assert len(view.images.all()) == len(engine.images)
    assert len(engine.calls_of("list_containers")) == 1
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["refresh failed, will be retried"]


def test_a_reconnect_with_a_failing_image_store_restores_the_pods(engine: FakeEngine) -> None:
    create_sandbox(engine)
    with watching(engine, sync_timeout=0) as view:
        wait_until(lambda: not is_out_of_reach(view))
        wait_until(view.images.is_listed)
        engine.fail_next("list_images", *[ShimError("list images: layer does not exist (status 500)")] * 1000)
        engine.disconnect()
        wait_until(lambda: is_out_of_reach(view))
        engine.reconnect()
        wait_until(lambda: not is_out_of_reach(view))
        assert len(view.sandboxes()) == 1
        wait_until(lambda: "layer does not exist" in view.stats().images_outage)
        with pytest.raises(ImagesUnknown, match="layer does not exist"):
            view.images.all()  # the images may have changed since


def test_known_images_stay_known_when_a_later_list_fails(engine: FakeEngine) -> None:
    image_id = engine.add_image("registry.example/app:v1")
    with watching(engine, timings=replace(EAGER, resync=0.01)) as view:
        view.images.all()
        before = len(engine.calls_of("list_images"))
        engine.fail_next("list_images", *[ShimError("no luck")] * 3)
        wait_until(lambda: len(engine.calls_of("list_images")) > before + 3)
        assert view.images.find(image_id) is not None


def test_an_image_list_from_before_an_outage_does_not_count(engine: FakeEngine) -> None:
    """The list may lack changes from the outage."""
    engine.add_image("registry.example/old:v1")
    with watching(engine, timings=replace(EAGER, resync=0.01)) as view:
        view.images.all()
        with engine.held("list_images") as gate:
            gate.wait_entered()
            engine.disconnect()
            wait_until(lambda: is_out_of_reach(view))
            engine.images.clear()
            engine.reconnect()
            wait_until(lambda: not is_out_of_reach(view))
            assert not view.images.is_listed()
        assert view.images.all() == ()


# Many images


def test_an_image_event_causes_an_inspect_of_that_image(engine: FakeEngine) -> None:
    with watching(engine) as view:
        view.images.all()
        lists = len(engine.calls_of("list_images"))
        image_id = engine.add_image("registry.example/app:v1")
        wait_until(lambda: view.images.find(image_id))
        engine.images[-1].tags.append("registry.example/app:v2")
        engine.emit("image", "tag", image_id, {"name": "registry.example/app:v2"})
        wait_until(lambda: view.images.find("registry.example/app:v2"))
        engine.remove_image("registry.example/app:v2")
        engine.remove_image(image_id)
        wait_until(lambda: view.images.find(image_id) is None)
        assert len(engine.calls_of("list_images")) == lists


def test_an_image_that_lost_its_tag_is_inspected_too(engine: FakeEngine) -> None:
    before = engine.add_image("registry.example/app:v1", ImageSettings(user="old"))
    with watching(engine) as view:
        view.images.all()
        engine.add_image("registry.example/app:v1", ImageSettings(user="new"))
        engine.images[0].digests.clear()  # as with the containerd store; Docker's event names only the new image
        wait_until(lambda: (old := view.images.find(before)) is not None and not old.names)


def test_a_list_of_many_images_is_published_without_inspects(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "INSPECTED_AT_START", 3)
    ids = [engine.add_image(f"registry.example/i{number}:v1", ImageSettings(user="www")) for number in range(5)]
    with watching(engine) as view:
        assert {record.id for record in view.images.all()} == set(ids)
        assert engine.calls_of("inspect_image") == []
        record = view.images.lookup(ids[0])
        assert record is not None
        assert record.user == "www"
        view.images.refresh()
        assert len(view.images.not_inspected()) == 4  # the first image stays inspected


def test_the_interval_of_image_lists_follows_their_cost(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "LIST_SHARE", 1e-9)
    with watching(engine, timings=replace(EAGER, resync=0.01)) as view:
        view.images.all()
        resyncs = len(engine.calls_of("list_containers"))
        wait_until(lambda: len(engine.calls_of("list_containers")) > resyncs + 5)
        assert len(engine.calls_of("list_images")) == 1


def test_changed_images_that_would_wait_long_for_their_inspects_are_listed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a CI job has built and removed images by the hundred; the next resync is far away."""
    monkeypatch.setattr(image_pace, "SHARE", 1e-6)
    monkeypatch.setattr(image_pace, "CREDIT_SECONDS", 0.0)
    ids = [engine.add_image(f"registry.example/i{number}:v1") for number in range(20)]
    with watching(engine, timings=replace(EAGER, resync=1000.0)) as view:
        view.images.all()
        wait_until(lambda: not view.images.not_inspected())
        for image_id in ids:
            engine.images = [image for image in engine.images if image.id != image_id]
            engine.emit("image", "delete", image_id, {"name": image_id})
        wait_until(lambda: view.images.all() == ())


# Inspects of RPCs


def test_a_change_that_an_rpc_has_inspected_is_not_inspected_again(engine: FakeEngine) -> None:
    other = create_sandbox(engine)
    with watching(engine, timings=Timings(event_delay=0.2)) as view:
        view.sandboxes()
        sandbox_id = create_sandbox(engine, attempt=1)
        view.refresh_container(sandbox_id)
        engine.emit("container", "update", other)
        wait_until(lambda: engine.calls_of("inspect_container").count(other) == 2)
    assert engine.calls_of("inspect_container").count(sandbox_id) == 1


def test_a_starting_pause_container_is_not_inspected(engine: FakeEngine) -> None:
    with watching(engine, timings=Timings(event_delay=1000)) as view:
        view.sandboxes()
        started = create_sandbox(engine)
        ended = create_sandbox(engine, attempt=1)
        engine.exit_container(ended)
        wait_until(lambda: ended in engine.calls_of("inspect_container"))
        assert started not in engine.calls_of("inspect_container")


def test_a_change_after_the_inspect_of_an_rpc_is_inspected(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id, start=True)
    with watching(engine) as view:
        view.refresh_container(container_id)
        engine.update_container(container_id, body={"CpuShares": 77})
        wait_until(lambda: view.container(container_id).host.cpu_shares == 77)


def test_an_exit_is_inspected_without_delay(engine: FakeEngine) -> None:
    sandbox_id = create_sandbox(engine)
    with watching(engine, timings=Timings(event_delay=1000)) as view:
        view.sandboxes()
        engine.exit_container(sandbox_id)
        wait_until(lambda: not view.sandbox(sandbox_id).state.running)


# Everything at once

OPERATIONS = ("create", "start", "exit", "remove", "rename", "update", "pull", "cut", "lose")
BY_US = frozenset({"start", "exit", "update"})
"""Operations of RPCs, which refresh the view at their end."""


def apply_operation(engine: FakeEngine, what: str, choice: int) -> None:
    """Apply an operation to the Engine."""
    there = list(engine.containers)
    chosen = there[choice % len(there)] if there else None
    match what:
        case "create":
            sandbox_id = create_sandbox(engine, attempt=len(engine.calls))
            create_container(engine, sandbox_id, name=f"app-{len(engine.calls)}", start=bool(choice % 2))
        case "pull":
            engine.add_image(f"registry.example/app:{choice}")
            engine.emit("image", "pull", "app")
        case "cut":
            engine.disconnect()
            engine.reconnect()
        case _ if chosen is not None:
            apply_to(engine, what, chosen, choice)


def apply_to(engine: FakeEngine, what: str, chosen: str, choice: int) -> None:
    match what:
        case "start":
            with suppress(ShimError):  # its pause container is gone or not running
                engine.start_container(chosen)
        case "exit" if engine.containers[chosen].running:
            engine.exit_container(chosen, exit_code=choice)
        case "remove":
            engine.remove_container(chosen)
        case "rename":
            engine.rename_container(chosen, name=f"mine-{len(engine.calls)}")
        case "update":
            engine.update_container(chosen, body={"CpuShares": choice})
        case "lose":  # without an event
            del engine.containers[chosen]


def is_true(view: NodeView, engine: FakeEngine) -> bool:
    """Return whether the view agrees with Docker."""
    records: list[Record] = [*view.sandboxes(), *view.containers()]
    seen: dict[str, Record] = {record.id: record for record in records}
    expected = {
        container_id: translate.record_from_inspect(container.inspect(), previous=seen.get(container_id))
        for container_id, container in engine.containers.items()
    }
    images = {record.id for record in view.images.all()} == {image.id for image in engine.images}
    return images and seen == expected


@given(
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.booleans()), max_size=25),
    copies=st.lists(st.integers(0, 2), max_size=40),
    settle=st.sampled_from([0.0, 0.002]),
)
@settings(max_examples=40, deadline=None)
def test_the_view_converges_to_dockers_state(
    operations: list[tuple[str, int, bool]], copies: list[int], settle: float
) -> None:
    """The view converges through lost and repeated events, cut connections and refreshes by RPCs."""
    engine = BadLine(copies=copies)
    with watching(
        engine,
        timings=Timings(resync=0.01, event_delay=settle, retry_delay=0.001, min_reconnect_delay=0.001),
    ) as view:
        for what, choice, refreshes in operations:
            apply_operation(engine, what, choice)
            if refreshes and engine.containers and what in BY_US:
                view.refresh_container(list(engine.containers)[choice % len(engine.containers)])
        # Lists do not contain resources: only events report them, and the last events arrive.
        for container_id in list(engine.containers):
            engine.emit("container", "update", container_id)
        wait_until(lambda: not is_out_of_reach(view) and is_true(view, engine))


def test_a_reader_that_cannot_be_started_is_the_cause_of_the_outage(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_thread_for("view-events", monkeypatch)
    with watching(engine) as view:
        wait_until(lambda: "can't start new thread" in view.stats().outage)
