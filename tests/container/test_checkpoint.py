import json
from pathlib import Path
from typing import Any

import pytest

from shim.base import deadline
from shim.container import checkpoint as module
from shim.container.checkpoint import checkpoint_container
from shim.criu.checkpoint import Task
from shim.criu.order import ContainerOrder
from shim.domain.errors import FailedPrecondition
from shim.own_exec.own_exec import OwnExec
from shim.runtime import Runtime
from tests.pods import created, ready_pod, running


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ContainerOrder, float | None]]:
    """Take orders instead of making checkpoints: each with the seconds that it has."""
    taken: list[tuple[ContainerOrder, float | None]] = []
    config = {"process": {"args": ["sleep"]}, "annotations": {"a": "b"}}
    task = Task(
        runc=Path("/usr/sbin/runc"), state_root=Path("/states"), config=config, upper=Path("/upper"), joins_pids=False
    )

    def take(_own_exec: OwnExec, order: ContainerOrder, *, what: str) -> None:
        assert order.source.container in what
        taken.append((order, deadline.current().remaining()))

    monkeypatch.setattr(module, "read_task", lambda *_, **__: task)
    monkeypatch.setattr(module, "carry_out", take)
    return taken


def document(order: ContainerOrder, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(order.source.documents[name])
    return found


def test_the_documents_say_what_the_container_is(
    rt: Runtime, orders: list[tuple[ContainerOrder, float | None]]
) -> None:
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    record = rt.view.container(container)
    checkpoint_container(rt, container_id=container[:12], location="/archives/c.tar", timeout=0)
    [(order, seconds)] = orders
    assert (order.source.container, order.location, order.source.log) == (container, "/archives/c.tar", record.log_path)
    assert Path(order.work).parent == rt.config.root_directory / "checkpointing"
    assert seconds == pytest.approx(600, abs=30)
    config = document(order, "config.dump")
    assert (config["id"], config["name"], config["runtime"]) == (container, record.config.metadata.name, "runc")
    assert config["createdTime"].endswith("Z")
    spec = document(order, "spec.dump")
    assert spec["process"] == {"args": ["sleep"]}
    assert spec["annotations"]["a"] == "b"
    assert spec["annotations"]["io.kubernetes.cri.sandbox-id"] == sandbox
    assert document(order, "status.dump")["Pid"] == record.state.pid


def test_the_timeout_bounds_it(rt: Runtime, orders: list[tuple[ContainerOrder, float | None]]) -> None:
    checkpoint_container(rt, container_id=running(rt, ready_pod(rt)), location="/c.tar", timeout=7)
    [(_, seconds)] = orders
    assert seconds is not None
    assert seconds <= 7


def test_a_container_must_run_to_be_checkpointed(
    rt: Runtime, orders: list[tuple[ContainerOrder, float | None]]
) -> None:
    with pytest.raises(FailedPrecondition, match="is not running"):
        checkpoint_container(rt, container_id=created(rt, ready_pod(rt)), location="/c.tar", timeout=0)
    assert orders == []
