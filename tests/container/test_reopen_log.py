from dataclasses import replace

import pytest

from shim.container.reopen_log import reopen_container_log
from shim.domain.errors import FailedPrecondition, NotFound
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.pods import created, ready_pod, running


def test_a_running_container_gets_a_new_log(rt: Runtime, logs: FakeLogs) -> None:
    container = running(rt, ready_pod(rt))
    reopen_container_log(rt, container_id=container[:12])
    assert logs.reopened == [container]


def test_a_container_without_a_log_has_nothing_to_reopen(rt: Runtime, logs: FakeLogs) -> None:
    reopen_container_log(rt, container_id=running(rt, ready_pod(rt), log_path=""))
    assert logs.reopened == []


def test_reopening_needs_a_running_container(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    container = created(rt, sandbox)
    with pytest.raises(FailedPrecondition, match="is not running"):
        reopen_container_log(rt, container_id=container)
    ended = running(rt, sandbox, "ended")
    engine.exit_container(ended)
    rt.view.refresh_container(ended)
    with pytest.raises(FailedPrecondition, match="is not running"):
        reopen_container_log(rt, container_id=ended)
    with pytest.raises(NotFound):
        reopen_container_log(rt, container_id="e" * 64)


def test_the_log_of_a_cri_dockerd_container_is_not_reopened(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    record = replace(rt.view.container(running(rt, ready_pod(rt))), legacy=True)
    monkeypatch.setattr(type(rt.view), "container", lambda *_: record)
    with pytest.raises(FailedPrecondition, match="another shim"):
        reopen_container_log(rt, container_id=record.id)
