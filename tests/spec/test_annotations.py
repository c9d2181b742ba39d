import pytest
from msgspec.structs import replace

from shim.api.v1 import api_pb2 as pb
from shim.config.model import Config
from shim.domain.errors import Unsupported
from shim.runtime import Runtime
from shim.spec.annotations import container_annotations, sandbox_annotations
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
