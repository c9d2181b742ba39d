import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.status import container_status
from shim.container.update import update_container_resources
from shim.errors import FailedPrecondition, InvalidArgument, ShimError
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running

LIMITS = pb.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=64 << 20)


def test_created_and_running_containers_can_be_changed(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    for container in (created(rt, sandbox, "a"), running(rt, sandbox, "b")):
        update_container_resources(rt, container_id=container, linux=LIMITS)
        actual = container_status(rt, container_id=container, verbose=False).status.resources.linux
        assert (actual.cpu_shares, actual.memory_limit_in_bytes) == (512, 64 << 20)


def test_one_that_has_ended_cannot(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container)
    rt.view.refresh_container(container)
    with pytest.raises(FailedPrecondition, match="has ended"):
        update_container_resources(rt, container_id=container, linux=LIMITS)


def test_a_bad_key_changes_nothing(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    bad = pb.LinuxContainerResources(cpu_shares=512, unified={"memory.high": "1"})
    with pytest.raises(InvalidArgument, match=r"linux\.unified"):
        update_container_resources(rt, container_id=container, linux=bad)
    assert engine.containers[container].host.get("CpuShares", 0) != 512


def test_docker_has_the_last_word(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.fail_next("update_container", ShimError("memory limit is below what is in use"))
    with pytest.raises(ShimError, match="below what is in use"):
        update_container_resources(rt, container_id=container, linux=LIMITS)
