import pytest

from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.sandbox.find import sandboxes
from shim.sandbox.remove import remove_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running


def test_removing_an_unknown_sandbox_succeeds(rt: Runtime) -> None:
    remove_pod_sandbox(rt, sandbox_id="f" * 64)


def test_a_running_pod_is_removed_with_all_its_containers(rt: Runtime, engine: FakeEngine) -> None:
    sandbox, other = ready_pod(rt), ready_pod(rt, "other")
    running(rt, sandbox, "a")
    created(rt, sandbox, "b")
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert list(engine.containers) == [other]
    assert [record.id for record in sandboxes(rt)] == [other]
    assert [checkpoint.sandbox_id for checkpoint in rt.checkpoints.all()] == [other]
    assert len(list((rt.config.root_directory / "resolv-conf").iterdir())) == 1
    remove_pod_sandbox(rt, sandbox_id=sandbox)


def test_the_checkpoint_is_deleted_last(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.fail_next("remove_container", ShimError("busy"))
    with pytest.raises(ShimError, match="busy"):
        remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert rt.checkpoints.get(sandbox) is not None
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert rt.checkpoints.get(sandbox) is None


def test_the_rest_of_a_pod_removed_by_hand_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    engine.remove_container(sandbox)
    rt.view.refresh_container(sandbox)
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert sandboxes(rt) == []
