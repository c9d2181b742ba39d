import pytest

from shim.container.delayed_start import apply_when_running
from shim.domain.errors import DeadlineExceeded, Unavailable
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.waits import wait_until


def never() -> None:
    raise AssertionError("it does not run")


def test_it_is_done_once_the_container_runs(rt: Runtime, engine: FakeEngine) -> None:
    container, done = created(rt, ready_pod(rt)), []
    assert not apply_when_running(rt, container, act=never)
    engine.start_container(container)
    wait_until(lambda: rt.view.container(container).life.running)
    assert apply_when_running(rt, container, act=lambda: done.append(container))
    assert done == [container]


def test_it_is_over_with_the_container(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    wait_until(lambda: not rt.view.container(container).life.running)
    assert apply_when_running(rt, container, act=never)
    assert apply_when_running(rt, "f" * 64, act=never)


def test_nothing_is_known_while_the_view_cannot_answer(rt: Runtime) -> None:
    """Else the time in which Docker may start it late would pass while Docker is away."""
    container = created(rt, ready_pod(rt))
    rt.view.lose("docker cannot be reached")
    with pytest.raises(Unavailable):
        apply_when_running(rt, container, act=never)
    rt.view.begin_rebuild()
    with pytest.raises(DeadlineExceeded):
        apply_when_running(rt, container, act=never)
