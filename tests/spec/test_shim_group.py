"""One containerd-shim for a pod: which containers name the group of their pause container."""

import msgspec
import pytest

from shim.config.model import Config
from shim.engine.answers import Runtime as KnownRuntime
from shim.engine.runc import SHIM_GROUP
from shim.runtime import Runtime
from shim.sandbox.run import run_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import created, pod_config, ready_pod


@pytest.fixture
def config(config: Config) -> Config:
    return msgspec.structs.replace(config, pod_annotations=("kept", "io.containerd.*"), container_annotations=("io.*",))


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


def test_a_runtime_that_may_have_another_shim_is_left_alone(rt: Runtime, engine: FakeEngine) -> None:
    more = {"runc": KnownRuntime(path="runc"), "gvisor": KnownRuntime(path="runsc")}
    engine.engine_info = msgspec.structs.replace(engine.engine_info, runtimes=more)
    pod = run_pod_sandbox(rt, config=pod_config(), runtime_handler="gvisor")
    assert annotations(engine, pod) == annotations(engine, created(rt, pod)) == {}


def test_so_is_a_pod_whose_default_runtime_has_become_another(rt: Runtime, engine: FakeEngine) -> None:
    pod = ready_pod(rt)
    engine.engine_info = msgspec.structs.replace(engine.engine_info, default_runtime="gvisor")
    rt.facts.info(max_age=0)
    assert annotations(engine, created(rt, pod)) == {}


def test_an_old_engine_would_drop_the_annotation(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 42)
    pod = ready_pod(rt)
    assert annotations(engine, pod) == annotations(engine, created(rt, pod)) == {}


def test_containers_of_a_pod_without_a_group_have_none(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 42)  # as an earlier server made them
    pod = ready_pod(rt)
    engine.version = (1, 51)
    assert annotations(engine, created(rt, pod)) == {}
