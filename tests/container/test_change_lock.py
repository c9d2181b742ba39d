import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.container.change_lock import apply_when_running, hold_for_change
from shim.container.remove import remove_container
from shim.container.start import start_container
from shim.domain.errors import DeadlineExceeded, NotFound, Unavailable
from shim.runtime import Runtime
from shim.view.records import ContainerRecord
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.waits import SECONDS, wait_until


def never(_: ContainerRecord) -> None:
    raise AssertionError("it does not run")


def test_apply_is_called_once_the_container_runs(rt: Runtime, engine: FakeEngine) -> None:
    container, done = created(rt, ready_pod(rt)), []
    assert not apply_when_running(rt, container, apply=never)
    engine.start_container(container)
    wait_until(lambda: rt.view.container(container).state.running)
    assert apply_when_running(rt, container, apply=lambda record: done.append(record.id))
    assert done == [container]


def test_checks_stop_when_the_container_has_ended(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    wait_until(lambda: not rt.view.container(container).state.running)
    assert apply_when_running(rt, container, apply=never)
    assert apply_when_running(rt, "f" * 64, apply=never)


def test_an_unavailable_view_is_an_error(rt: Runtime) -> None:
    """Otherwise the time limit for late starts would expire during an outage of Docker."""
    container = created(rt, ready_pod(rt))
    rt.view.disconnect("docker cannot be reached")
    with pytest.raises(Unavailable):
        apply_when_running(rt, container, apply=never)
    rt.view.begin_sync()
    with pytest.raises(DeadlineExceeded):
        apply_when_running(rt, container, apply=never)


class Waiting:
    """A change that waits for another change."""

    def __init__(self, rt: Runtime, container: str) -> None:
        self._rt, self._container = rt, container
        self._asked = threading.Event()

    def change(self) -> bool:
        """Return whether the container runs when the change gets the lock."""
        self._asked.set()
        with hold_for_change(self._rt, self._container) as record:
            return record.state.running

    def wait_asked(self) -> None:
        assert self._asked.wait(SECONDS)


def test_a_change_sees_the_result_of_the_previous_change(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    waiting = Waiting(rt, container)
    with ThreadPoolExecutor() as pool:
        with engine.held("start_container") as gate:
            start = pool.submit(start_container, rt, container_id=container)
            gate.wait_entered()
            change = pool.submit(waiting.change)
            waiting.wait_asked()
        start.result(SECONDS)
        assert change.result(SECONDS)


def test_changing_a_container_that_was_removed_meanwhile_raises_not_found(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))
    waiting = Waiting(rt, container)
    with ThreadPoolExecutor() as pool:
        with hold_for_change(rt, container):
            change = pool.submit(waiting.change)
            waiting.wait_asked()
            remove_container(rt, container_id=container)
        with pytest.raises(NotFound):
            change.result(SECONDS)
