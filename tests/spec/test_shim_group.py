"""The containerd-shim of a pod: which containers name the group of their pause container, and how many."""

from functools import partial
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base.gather import gather
from shim.config.model import Config
from shim.container.start import start_container
from shim.dockerd.runc import SHIM_GROUP
from shim.domain.ids import ContainerId, SandboxId
from shim.engine.answers import Runtime as KnownRuntime
from shim.runtime import Runtime
from shim.sandbox.run import run_pod_sandbox
from tests import pods
from tests.fakes.engine import FakeEngine


@pytest.fixture
def config(config: Config) -> Config:
    return msgspec.structs.replace(config, pod_annotations=("kept", "io.containerd.*"), container_annotations=("io.*",))


def pod_config(name: str = "web", *, pid: "pb.NamespaceMode" = pb.CONTAINER, **fields: Any) -> pb.PodSandboxConfig:
    context = pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE, pid=pid))
    return pods.pod_config(name, linux=pb.LinuxPodSandboxConfig(security_context=context), **fields)


def ready_pod(rt: Runtime, *, pid: "pb.NamespaceMode" = pb.CONTAINER) -> SandboxId:
    return run_pod_sandbox(rt, config=pod_config(pid=pid), runtime_handler="")


def created(
    rt: Runtime, sandbox: SandboxId, name: str = "app", *, pid: "pb.NamespaceMode" = pb.CONTAINER, **fields: Any
) -> ContainerId:
    context = pb.LinuxContainerSecurityContext(namespace_options=pb.NamespaceOption(pid=pid))
    return pods.created(rt, sandbox, name, linux=pb.LinuxContainerConfig(security_context=context), **fields)


def annotations(engine: FakeEngine, container_id: str) -> dict[str, str]:
    found: dict[str, str] = engine.containers[container_id].host["Annotations"]
    return found


def test_containers_name_the_group_of_their_pod(rt: Runtime, engine: FakeEngine) -> None:
    pod, other = ready_pod(rt), run_pod_sandbox(rt, config=pod_config("other"), runtime_handler="runc")
    first = annotations(engine, pod)[SHIM_GROUP]
    assert first
    assert annotations(engine, created(rt, pod))[SHIM_GROUP] == first
    assert annotations(engine, other)[SHIM_GROUP] not in {"", first}


def test_a_pod_cannot_choose_its_group(rt: Runtime, engine: FakeEngine) -> None:
    chosen = pod_config(annotations={SHIM_GROUP: "of another pod", "kept": "x"})
    pod = run_pod_sandbox(rt, config=chosen, runtime_handler="")
    container = created(rt, pod, annotations={SHIM_GROUP: "of another pod"})
    group = annotations(engine, pod)[SHIM_GROUP]
    assert group != "of another pod"
    assert annotations(engine, container) == {SHIM_GROUP: group, "kept": "x"}


def test_containers_of_another_oci_runtime_share_no_group(rt: Runtime, engine: FakeEngine) -> None:
    more = {"runc": KnownRuntime(path="runc"), "gvisor": KnownRuntime(path="runsc")}
    engine.engine_info = msgspec.structs.replace(engine.engine_info, runtimes=more)
    pod = run_pod_sandbox(rt, config=pod_config(), runtime_handler="gvisor")
    assert annotations(engine, pod)[SHIM_GROUP] != annotations(engine, created(rt, pod))[SHIM_GROUP]


def test_a_container_of_a_new_default_runtime_does_not_join_the_group_of_pause(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    engine.engine_info = msgspec.structs.replace(engine.engine_info, default_runtime="gvisor")
    rt.facts.info(max_age=0)
    assert annotations(engine, created(rt, pod))[SHIM_GROUP] != annotations(engine, pod)[SHIM_GROUP]


def test_an_old_engine_gets_no_group(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 42)
    pod = ready_pod(rt)
    assert annotations(engine, pod) == annotations(engine, created(rt, pod)) == {}


def test_containers_of_a_pod_without_a_group_have_none(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 42)  # as an earlier server made them
    pod = ready_pod(rt)
    engine.version = (1, 51)
    assert annotations(engine, created(rt, pod)) == {}


@pytest.mark.parametrize("pid", [pb.POD, pb.NODE])
def test_containers_in_a_shared_pid_namespace_have_no_group(
    rt: Runtime, engine: FakeEngine, pid: "pb.NamespaceMode"
) -> None:
    pod = ready_pod(rt, pid=pid)
    assert annotations(engine, pod) == annotations(engine, created(rt, pod, pid=pid)) == {}


def test_a_container_that_joins_another_pid_namespace_has_no_group(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    target = created(rt, pod)
    start_container(rt, container_id=target)
    options = pb.NamespaceOption(pid=pb.TARGET, target_id=target)
    context = pb.LinuxContainerSecurityContext(namespace_options=options)
    debugger = pods.created(rt, pod, "debugger", linux=pb.LinuxContainerConfig(security_context=context))
    assert annotations(engine, target)[SHIM_GROUP]
    assert annotations(engine, debugger) == {}


def test_containers_beyond_the_limit_have_no_group(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    made = [created(rt, pod, f"c{number}") for number in range(10)]
    assert [SHIM_GROUP in annotations(engine, each) for each in made] == [True] * 8 + [False] * 2


def test_concurrent_creates_keep_the_limit(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    made = gather([partial(created, rt, pod, f"c{number}") for number in range(24)])
    assert sum(SHIM_GROUP in annotations(engine, each) for each in made) == 8


def test_an_ended_container_frees_its_place(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    made = [created(rt, pod, f"c{number}") for number in range(8)]
    start_container(rt, container_id=made[0])
    engine.exit_container(made[0])
    rt.view.refresh_exited(made[0])
    assert annotations(engine, created(rt, pod, "next"))[SHIM_GROUP]
    assert annotations(engine, created(rt, pod, "one more")) == {}
