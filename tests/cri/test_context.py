import pytest
from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.cri.context import subjects_of

POD = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", namespace="shop"))


@pytest.mark.parametrize(
    ("message", "subjects"),
    [
        pytest.param(pb.RunPodSandboxRequest(config=POD), {"pod": "shop/web"}, id="run"),
        pytest.param(pb.RunPodSandboxResponse(pod_sandbox_id="5a"), {"sandbox": "5a"}, id="run-answer"),
        pytest.param(
            pb.CreateContainerRequest(
                pod_sandbox_id="5a",
                sandbox_config=POD,
                config=pb.ContainerConfig(metadata=pb.ContainerMetadata(name="app")),
            ),
            {"pod": "shop/web", "name": "app", "sandbox": "5a"},
            id="create",
        ),
        pytest.param(pb.StopContainerRequest(container_id="c1"), {"container": "c1"}, id="stop"),
        pytest.param(
            pb.PullImageRequest(image=pb.ImageSpec(image="busybox"), auth=pb.AuthConfig(password="hunter2")),
            {"image": "busybox"},
            id="pull",
        ),
        pytest.param(pb.PullImageResponse(image_ref="sha256:1"), {"image": "sha256:1"}, id="pull-answer"),
        pytest.param(pb.VersionRequest(version="v1"), {}, id="none"),
        pytest.param(pb.StopContainerRequest(), {}, id="empty"),
        pytest.param(pb.StopContainerRequest(container_id="x" * 9999), {"container": "x" * 256}, id="huge"),
    ],
)
def test_subjects_are_found_in_requests_and_responses(message: Message, subjects: dict[str, str]) -> None:
    assert subjects_of(message) == subjects
