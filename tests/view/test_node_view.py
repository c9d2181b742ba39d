"""The view answers from memory, and publishes each change once."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ShimError,
    Unavailable,
)
from shim.domain.ids import SandboxId
from shim.logs.interface import ContainerLog
from shim.view import translate
from shim.view.changes import CREATED, DELETED, STARTED, STOPPED
from shim.view.node_view import NodeView
from shim.view.pending_exits import NoLogs
from shim.view.records import Change, Record
from tests.view.late import LateEngine
from tests.view.samples import create_container, create_sandbox, create_stranger, inspects
from tests.waits import SECONDS, wait_until

Reported = list[tuple[pb.ContainerEventType, str]]


def reported(subscription: Subscription[Change], number: int) -> Reported:
    """Return the next `number` changes."""
    changes = [subscription.wait_next() for _ in range(number)]
    return [(change.kind, change.record.id) for change in changes]


def test_a_pod_has_its_containers(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    app = create_container(engine, sandbox_id, name="app", start=True)
    other = create_container(engine, SandboxId("another"), name="other")
    for made in (sandbox_id, app, other, create_stranger(engine)):
        view.refresh_container(made)
    assert [record.id for record in view.sandboxes()] == [sandbox_id]
    assert [record.id for record in view.containers()] == [app, other]
    assert [record.id for record in view.containers_of(sandbox_id)] == [app]
    assert view.containers_of(SandboxId("unknown")) == ()
    assert view.container(app).state.running


def test_lists_are_rebuilt_only_after_a_change(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine))
    view.refresh_container(container_id)
    first = view.containers()
    view.refresh_container(container_id)
    assert view.containers() is first
    engine.start_container(container_id)
    view.refresh_container(container_id)
    assert view.containers() is not first
    assert not first[0].state.running


def test_a_unique_id_prefix_finds_a_record(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id)
    for made in (sandbox_id, container_id):
        view.refresh_container(made)
    assert view.sandbox(sandbox_id[:1]).id == view.sandbox(sandbox_id).id == sandbox_id
    assert view.container(container_id[:5]).id == container_id


def test_an_ambiguous_id_prefix_is_refused(engine: LateEngine, view: NodeView) -> None:
    ids = [create_sandbox(engine, attempt=attempt) for attempt in range(17)]  # more than there are first digits
    for made in ids:
        view.refresh_container(made)
    shared = next(made[0] for made in ids if sum(other[0] == made[0] for other in ids) > 1)
    with pytest.raises(InvalidArgument, match=f"pod sandbox id '{shared}' fits"):
        view.sandbox(shared)


def test_an_id_finds_only_records_of_its_kind(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id)
    stranger = create_stranger(engine)
    for made in (sandbox_id, container_id, stranger):
        view.refresh_container(made)
    for kind, wanted in ((view.container, sandbox_id), (view.sandbox, container_id), (view.container, stranger)):
        with pytest.raises(NotFound, match=wanted):
            kind(wanted)


@pytest.mark.parametrize("wanted", ["", "no such id"])
def test_unknown_and_empty_ids_are_errors(view: NodeView, wanted: str) -> None:
    for kind in (view.container, view.sandbox):
        with pytest.raises(NotFound if wanted else InvalidArgument):
            kind(wanted)


def test_every_read_is_refused_while_disconnected(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    view.refresh_container(sandbox_id)
    view.disconnect("the socket is gone")
    questions: list[Callable[[], object]] = [
        view.sandboxes,
        view.containers,
        view.images.all,
        lambda: view.sandbox(sandbox_id),
        lambda: view.container("x"),
        lambda: view.containers_of(sandbox_id),
        lambda: view.images.find("busybox"),
    ]
    for question in questions:
        with pytest.raises(Unavailable, match="the socket is gone"):
            question()
    assert (view.stats().outage, view.stats().sandboxes) == ("the socket is gone", 1)


# Reads that overlap


def test_a_late_answer_does_not_replace_a_newer_record(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)

    def exits_and_is_inspected() -> None:
        engine.exit_container(container_id, exit_code=3)
        view.refresh_container(container_id)

    engine.meanwhile.append(exits_and_is_inspected)
    record = view.refresh_container(container_id)
    assert record is not None
    assert record.state.exit_code == view.container(container_id).state.exit_code == 3


def test_an_answer_that_may_be_newer_is_inspected_again(engine: LateEngine, view: NodeView) -> None:
    """The inspect that ended first may have been answered last, which cannot be known, so Docker is asked again."""
    container_id = create_container(engine, create_sandbox(engine), start=True)
    still_running = engine.inspect_container(container_id)
    engine.exit_container(container_id, exit_code=4)

    def published_as_running() -> None:
        engine.old_answers.append(still_running)
        record = view.refresh_container(container_id)
        assert record is not None
        assert record.state.running

    engine.meanwhile.append(published_as_running)
    view.refresh_container(container_id)
    assert view.container(container_id).state.exit_code == 4


def test_equal_answers_are_not_inspected_again(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine))
    engine.meanwhile.append(lambda: view.refresh_container(container_id))
    view.refresh_container(container_id)
    assert inspects(engine) == 2


def test_a_late_answer_does_not_bring_back_a_removed_container(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine))
    view.refresh_container(container_id)

    def removed() -> None:
        engine.remove_container(container_id)
        view.forget(container_id)

    engine.meanwhile.append(removed)
    assert view.refresh_container(container_id) is None
    assert view.containers() == ()


def unknown(record: Record | None) -> Record | None:
    return translate.mark_unknown(record, message="no answer")


@pytest.mark.parametrize("error", [DeadlineExceeded("slow"), ShimError("broken")], ids=["hangs", "fails"])
def test_the_fallback_is_published_if_the_inspect_fails(engine: LateEngine, view: NodeView, error: ShimError) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    engine.fail_next("inspect_container", error)
    with pytest.raises(type(error)):
        view.refresh_container(container_id, fallback=unknown)
    assert view.container(container_id).state.phase == pb.CONTAINER_UNKNOWN
    view.refresh_container(container_id)
    assert view.container(container_id).state.running


@pytest.mark.parametrize("error", [Unavailable("gone"), Cancelled("left")], ids=["docker gone", "caller gone"])
def test_no_fallback_is_published_if_docker_is_unavailable(
    engine: LateEngine, view: NodeView, error: ShimError
) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    engine.fail_next("inspect_container", error)
    with pytest.raises(type(error)):
        view.refresh_container(container_id, fallback=unknown)
    assert view.container(container_id).state.running


def test_no_fallback_is_published_after_another_inspect(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)

    def inspected() -> None:
        view.refresh_container(container_id)
        raise DeadlineExceeded("slow")

    engine.meanwhile.append(inspected)
    with pytest.raises(DeadlineExceeded):
        view.refresh_container(container_id, fallback=unknown)
    assert view.container(container_id).state.running


def test_a_failed_inspect_keeps_the_record(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    before = view.refresh_container(container_id)
    engine.fail_next("inspect_container", DeadlineExceeded("slow"))
    with pytest.raises(DeadlineExceeded):
        view.refresh_container(container_id)
    assert view.container(container_id) is before


# Changes


def test_each_change_is_published_once_and_in_order(engine: LateEngine, view: NodeView) -> None:
    with view.subscribe() as changes:
        sandbox_id = create_sandbox(engine, start=False)
        view.refresh_container(sandbox_id)
        engine.start_container(sandbox_id)
        for _ in range(3):
            view.refresh_container(sandbox_id)
        container_id = create_container(engine, sandbox_id, start=True)
        view.refresh_container(container_id)
        engine.exit_container(container_id)
        view.refresh_container(container_id)
        engine.remove_container(container_id)
        view.refresh_container(container_id)
        view.forget(container_id)
        engine.remove_container(sandbox_id)
        view.forget(sandbox_id)
        assert reported(changes, 8) == [
            (CREATED, sandbox_id),
            (STARTED, sandbox_id),
            (CREATED, container_id),
            (STARTED, container_id),
            (STOPPED, container_id),
            (DELETED, container_id),
            (STOPPED, sandbox_id),
            (DELETED, sandbox_id),
        ]
        view.disconnect("no more")
        with pytest.raises(Unavailable):
            changes.wait_next()


def test_a_change_carries_the_state_after_it(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    running = view.refresh_container(container_id)
    assert running is not None
    with view.subscribe() as changes:
        view.forget(container_id)
        stopped, deleted = changes.wait_next(), changes.wait_next()
    assert stopped.record == deleted.record == replace(running, state=stopped.record.state)
    assert (stopped.record.state.phase, stopped.record.state.finished_at) == (pb.CONTAINER_EXITED, stopped.at)


def test_containers_of_no_pod_publish_no_changes(engine: LateEngine, view: NodeView) -> None:
    with view.subscribe() as changes:
        stranger = create_stranger(engine)
        view.refresh_container(stranger)
        engine.remove_container(stranger)
        view.refresh_container(stranger)
        sandbox_id = create_sandbox(engine, start=False)
        view.refresh_container(sandbox_id)
        assert reported(changes, 1) == [(CREATED, sandbox_id)]


def test_subscriptions_end_when_docker_is_lost(view: NodeView) -> None:
    with view.subscribe() as changes:
        assert view.stats().subscribers == 1
        view.disconnect("the socket is gone")
        with pytest.raises(Unavailable, match="the socket is gone"):
            changes.wait_next()
        assert view.stats().subscribers == 0


@contextmanager
def waiting_subscriber(
    view: NodeView, *, scope: deadline.Scope | None = None, count: int = 1
) -> Iterator[Future[Reported]]:
    """A client that subscribes while Docker is lost; its result is the first events, or its error."""

    def subscribe() -> Reported:
        with deadline.entered(scope or deadline.Scope()), view.subscribe() as changes:
            return reported(changes, count)

    before = view.stats().subscribers
    with ThreadPoolExecutor(1) as pool:
        subscribing = pool.submit(subscribe)
        wait_until(lambda: view.stats().subscribers == before + 1)
        yield subscribing


def test_a_subscriber_during_an_outage_gets_its_changes(engine: LateEngine, view: NodeView) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    view.disconnect("the socket is gone")
    with waiting_subscriber(view) as subscribing:
        view.begin_sync()
        view.disconnect("it is gone again")
        engine.exit_container(container_id)
        epoch = view.begin_sync()
        view.refresh_container(container_id)
        assert not subscribing.done()
        view.complete_sync(epoch)
        assert subscribing.result(10) == [(STOPPED, container_id)]
    assert view.stats().subscribers == 0


def test_a_subscriber_during_a_sync_gets_the_changes_of_the_outage(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    ended, gone = (create_container(engine, sandbox_id, name=name, start=True) for name in ("ended", "gone"))
    for known in (ended, gone):
        view.refresh_container(known)
    view.disconnect("the socket is gone")
    engine.exit_container(ended)
    epoch = view.begin_sync()
    view.refresh_container(ended)
    with waiting_subscriber(view, count=3) as subscribing:
        view.forget(gone)
        view.complete_sync(epoch)
        assert subscribing.result(10) == [(STOPPED, ended), (STOPPED, gone), (DELETED, gone)]
    with view.subscribe() as changes:  # a later subscriber gets only new changes
        view.refresh_container(sandbox_id)
        assert reported(changes, 1) == [(CREATED, sandbox_id)]


def test_a_subscriber_behind_too_many_changes_is_dropped(engine: LateEngine) -> None:
    view = NodeView(engine, subscriber_capacity=1)
    view.complete_sync(view.begin_sync())
    view.disconnect("the socket is gone")
    epoch = view.begin_sync()
    view.refresh_container(create_sandbox(engine))  # created and started
    with view.subscribe() as changes, pytest.raises(ResourceExhausted):
        changes.wait_next()
    view.complete_sync(epoch)
    assert view.stats().subscribers == 0


def test_a_subscriber_may_fall_4096_changes_behind(engine: LateEngine) -> None:
    view = NodeView(engine)
    view.complete_sync(view.begin_sync())
    sandbox_id = create_sandbox(engine)
    with view.subscribe() as changes:
        for _ in range(1024):  # created, started, stopped, deleted
            view.refresh_container(sandbox_id)
            view.forget(sandbox_id)
        assert view.stats().subscribers == 1
        view.refresh_container(sandbox_id)
        with pytest.raises(ResourceExhausted, match="it fell 4096 changes behind"):
            changes.wait_next()


def test_the_first_sync_publishes_no_changes(engine: LateEngine) -> None:
    view = NodeView(engine)
    old, new = create_sandbox(engine), create_sandbox(engine, attempt=1)
    with waiting_subscriber(view) as subscribing:
        epoch = view.begin_sync()
        view.refresh_container(old)
        view.complete_sync(epoch)
        view.refresh_container(new)
        assert subscribing.result(10) == [(CREATED, new)]


def test_the_wait_of_a_subscriber_for_docker_is_bounded(engine: LateEngine) -> None:
    view = NodeView(engine, subscriber_timeout=0.01)
    view.disconnect("the socket is gone")
    with pytest.raises(Unavailable, match="the socket is gone"):
        view.subscribe()
    assert view.stats().subscribers == 0


def test_a_waiting_subscriber_ends_with_its_client(view: NodeView) -> None:
    view.disconnect("the socket is gone")
    scope = deadline.Scope()
    with waiting_subscriber(view, scope=scope) as subscribing:
        scope.cancel()
        with pytest.raises(Cancelled):
            subscribing.result(10)
    assert view.stats().subscribers == 0


# For the watcher


def test_drifted_ids_are_those_whose_records_differ_from_the_list(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    same, ended, gone, new = (
        create_container(engine, sandbox_id, name=name, start=True) for name in ("same", "ended", "gone", "new")
    )
    create_stranger(engine)
    for made in (sandbox_id, same, ended, gone):
        view.refresh_container(made)
    assert tuple(view.records()) == (sandbox_id, same, ended, gone)
    engine.exit_container(ended)
    engine.remove_container(gone)
    assert translate.drifted_ids(engine.list_containers(), view.records()) == {ended, gone, new}


def test_stats_count_records_and_outages(engine: LateEngine, view: NodeView) -> None:
    sandbox_id = create_sandbox(engine)
    for made in (sandbox_id, create_container(engine, sandbox_id)):
        view.refresh_container(made)
    view.images.refresh()
    before = view.stats()
    assert (before.sandboxes, before.containers, before.images, before.outage) == (1, 1, 1, "")
    assert (before.last_event_at, before.reconnects, before.resync_seconds_ago) == (0, 0, None)
    view.note_event()
    view.note_resync()
    view.disconnect("gone")
    view.complete_sync(view.begin_sync())
    after = view.stats()
    assert after.reconnects == 1
    assert after.last_event_at > 0
    assert after.resync_seconds_ago is not None
    assert after.resync_seconds_ago >= 0


def test_no_rpc_waits_for_a_follower(engine: LateEngine, view: NodeView) -> None:
    """It may tell a slow NRI plugin of an earlier change."""
    with view.follow() as follower:
        view.refresh_container(create_sandbox(engine))
        began = time.monotonic()
        view.wait_taken()
        assert time.monotonic() - began < 1
        assert follower.wait_next().kind == pb.CONTAINER_CREATED_EVENT


def test_a_follower_ends_when_docker_is_lost(view: NodeView) -> None:
    with view.follow() as follower:
        view.disconnect("lost")
        with pytest.raises(Unavailable):
            follower.wait_next()


class UndrainedLogs(NoLogs):
    """Logs whose last output is not written yet."""

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        return False


def test_an_exit_stays_pending_if_the_first_sync_is_cut_short(engine: LateEngine) -> None:
    """A client that sees EXITED reads the log, and only once."""
    sandbox_id = create_sandbox(engine)
    container_id = create_container(engine, sandbox_id, start=True)
    engine.stop_container(container_id, grace=0)
    view = NodeView(engine, logs=UndrainedLogs(), sync_timeout=0)
    epoch = view.begin_sync()
    view.refresh_container(container_id)
    view.disconnect("lost")

    assert not view.complete_sync(epoch, timeout=60)
    record = view.last_known(container_id)
    assert record is not None
    assert record.state.running


def test_a_dropped_client_that_returns_while_others_are_waited_for_misses_nothing(
    engine: LateEngine, view: NodeView
) -> None:
    with view.subscribe() as idle, view.subscribe():  # the second reads nothing, and has 2 s
        sandbox_id = create_sandbox(engine)
        view.refresh_container(sandbox_id)
        idle.wait_next()
        with idle.handing_over(), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(view.wait_taken)
            wait_until(lambda: idle.has_ended)
            container_id = create_container(engine, sandbox_id)
            view.refresh_container(container_id)
            with view.subscribe() as again, deadline.bound(SECONDS):
                assert not waiting.done()
                assert again.wait_next().record.id == container_id
