from collections.abc import Iterator

import pytest

from shim.base.meter import Measurement, subscribed
from shim.domain.errors import NotFound, Unavailable
from shim.engine.counted import counted
from shim.engine.interface import Engine
from tests.fakes.engine import FakeEngine


@pytest.fixture
def heard() -> Iterator[list[Measurement]]:
    found: list[Measurement] = []
    with subscribed(found.append):
        yield found


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def counting(engine: FakeEngine) -> Engine:
    return counted(engine)


def labels(heard: list[Measurement]) -> list[tuple[str, ...]]:
    return [done.labels for done in heard]


def test_calls_are_delegated_and_reported(counting: Engine, engine: FakeEngine, heard: list[Measurement]) -> None:
    assert counting.info() == engine.engine_info
    with pytest.raises(NotFound):
        counting.inspect_container("c" * 64)

    assert labels(heard) == [("info", "ok"), ("inspect_container", "NotFound")]
    assert engine.calls == [("info", ""), ("inspect_container", "c" * 64)]


def test_a_stream_is_reported_once_it_has_begun(counting: Engine, engine: FakeEngine, heard: list[Measurement]) -> None:
    with counting.events(since=None) as events:
        assert labels(heard) == [("events", "ok")]
        engine.emit("image", "pull", "x")
        assert next(iter(events)).action == "pull"

    assert labels(heard) == [("events", "ok")]


def test_a_stream_that_cannot_begin_is_reported_as_failed(
    counting: Engine, engine: FakeEngine, heard: list[Measurement]
) -> None:
    engine.disconnect()
    with pytest.raises(Unavailable), counting.events(since=None):
        pass

    assert labels(heard) == [("events", "Unavailable")]


def test_an_error_of_the_caller_inside_a_stream_is_not_reported(counting: Engine, heard: list[Measurement]) -> None:
    with pytest.raises(KeyError), counting.events(since=None):
        raise KeyError

    assert labels(heard) == [("events", "ok")]


def test_calls_without_a_request_are_not_reported(counting: Engine, heard: list[Measurement]) -> None:
    assert counting.api_version == (1, 51)
    assert counting.daemon_pid() > 0
    counting.close()

    assert heard == []
