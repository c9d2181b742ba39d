import pytest
from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.config.model import Config
from shim.dockerd.runc import SHIM_GROUP
from shim.domain.errors import Unsupported
from shim.engine.answers import EngineInfo
from shim.engine.connection import ApiVersion
from shim.runtime import Runtime
from shim.spec.annotations import (
    ANNOTATIONS_API,
    container_annotations,
    container_names,
    for_sandboxed,
    sandbox_annotations,
    sandbox_names,
)
from tests.fakes.engine import FakeEngine

POD = pb.PodSandboxConfig(annotations={"dev.gvisor.spec": "a", "exact": "b", "exactly": "c"})


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, pod_annotations=("dev.gvisor.*", "exact"), container_annotations=("*/x",))


def test_only_named_annotations_are_passed(rt: Runtime) -> None:
    assert sandbox_annotations(POD, settings=rt.config, api_version=rt.engine.api_version) == {
        "dev.gvisor.spec": "a",
        "exact": "b",
    }
    assert (
        sandbox_annotations(
            pb.PodSandboxConfig(annotations={"exact/x": "y"}), settings=rt.config, api_version=rt.engine.api_version
        )
        == {}
    )


def test_a_container_gets_the_pods_annotations_and_its_own(rt: Runtime) -> None:
    own = pb.ContainerConfig(annotations={"for/x": "d", "exact": "not the pod's"})
    assert container_annotations(own, pod=POD, settings=rt.config, api_version=rt.engine.api_version) == {
        "dev.gvisor.spec": "a",
        "exact": "b",
        "for/x": "d",
    }


def test_an_old_engine_without_annotations_is_refused(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = (1, 42)
    with pytest.raises(Unsupported, match=r"'dev\.gvisor\.spec' for the OCI runtime: needs Docker Engine 24\.0"):
        sandbox_annotations(POD, settings=rt.config, api_version=rt.engine.api_version)
    assert (
        sandbox_annotations(
            pb.PodSandboxConfig(annotations={"other": "x"}), settings=rt.config, api_version=rt.engine.api_version
        )
        == {}
    )


def named(names: dict[str, str], *, runtime: str, api_version: ApiVersion = ANNOTATIONS_API) -> dict[str, str]:
    """Return the names that an OCI runtime gets, without the group; the default runtime is runc."""
    info = EngineInfo(default_runtime="runc")
    found = for_sandboxed(names, info=info, runtime=runtime, api_version=api_version)
    return {key: text for key, text in found.items() if key != SHIM_GROUP}


def test_each_container_of_a_sandboxed_runtime_has_a_separate_containerd_shim() -> None:
    info = EngineInfo(default_runtime="runc")
    groups = {for_sandboxed({}, info=info, runtime="kata", api_version=ANNOTATIONS_API)[SHIM_GROUP] for _ in range(2)}
    assert len(groups) == 2


def test_a_sandboxed_runtime_finds_the_sandbox_of_a_container() -> None:
    pod = pb.PodSandboxMetadata(name="web", namespace="default", uid="u1")
    config = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="app"))
    sandbox = sandbox_names(pod)
    container = container_names(config, image="busybox:1", pod=pod, sandbox_id="s1")
    assert named(sandbox, runtime="kata") == {
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "default",
        "io.kubernetes.cri.sandbox-uid": "u1",
    }
    assert named(container, runtime="runsc") == {
        **sandbox,
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "app",
        "io.kubernetes.cri.image-name": "busybox:1",
        "io.kubernetes.cri.sandbox-id": "s1",
    }
    assert named(container, runtime="") == named(container, runtime="pydockershim") == {}
    assert named(container, runtime="kata", api_version=(1, 42)) == {}
