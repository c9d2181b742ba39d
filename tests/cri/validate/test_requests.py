"""Requests without a configuration of a pod or container."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.cri import validate
from shim.criu.layout import CONTAINERS_LIMIT
from shim.domain.errors import InvalidArgument
from tests.pods import container_config, pod_config


def restore_request(**fields: Any) -> pb.RestorePodRequest:
    """Return a good request; `fields` are other ones."""
    wanted: dict[str, Any] = {
        "checkpoint_path": "/checkpoints/p",
        "config": pod_config(),
        "container_configs": [container_config()],
    }
    return pb.RestorePodRequest(**(wanted | fields))


GOOD: dict[str, tuple[Callable[[Any], object], Message]] = {
    "stop": (validate.stop_container, pb.StopContainerRequest(container_id="c")),
    "exec": (validate.exec_sync, pb.ExecSyncRequest(container_id="c", cmd=["true"], timeout=5)),
    "checkpoint": (
        validate.checkpoint_container,
        pb.CheckpointContainerRequest(container_id="c", location="/checkpoints/c.tar", timeout=5),
    ),
    "checkpoint-pod": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(pod_sandbox_id="p", output_path="/checkpoints/p", container_ids=["c", "d"]),
    ),
    "restore-pod": (
        validate.restore_pod,
        restore_request(options={"tcp-established": "refuse"}),
    ),
    "update": (
        validate.update_container_resources,
        pb.UpdateContainerResourcesRequest(container_id="c", linux=pb.LinuxContainerResources()),
    ),
    "update-pod": (
        validate.update_pod_sandbox_resources,
        pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p"),
    ),
    "update-pod-below-no-limit": (
        validate.update_pod_sandbox_resources,
        pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id="p", resources=pb.LinuxContainerResources(cpu_quota=-25001)),
    ),
    "sandbox": (validate.pod_sandbox_id, pb.StopPodSandboxRequest(pod_sandbox_id="p")),
    "container": (validate.container_id, pb.StartContainerRequest(container_id="c")),
    "image": (validate.image, pb.ImageStatusRequest(image=pb.ImageSpec(image="busybox"))),
    "filter": (
        validate.well_formed,
        pb.ListContainersRequest(filter=pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_EXITED))),
    ),
}


@pytest.mark.parametrize(("check", "request_"), GOOD.values(), ids=GOOD)
def test_valid_requests_pass(check: Callable[[Message], object], request_: Message) -> None:
    check(request_)


BAD: dict[str, tuple[Callable[[Any], object], Message, str]] = {
    "checkpoint-pod-no-containers": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(pod_sandbox_id="p", output_path="/p"),
        "container_ids is empty",
    ),
    "checkpoint-pod-many-containers": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(
            pod_sandbox_id="p", output_path="/p", container_ids=[str(each) for each in range(CONTAINERS_LIMIT + 1)]
        ),
        "container_ids has 1001 entries, at most 1000 are allowed",
    ),
    "checkpoint-pod-twice": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(pod_sandbox_id="p", output_path="/p", container_ids=["c", "c"]),
        "container_ids names a container twice",
    ),
    "checkpoint-pod-relative": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(pod_sandbox_id="p", output_path="p", container_ids=["c"]),
        "output_path 'p' is not an absolute path",
    ),
    "checkpoint-pod-option": (
        validate.checkpoint_pod,
        pb.CheckpointPodRequest(pod_sandbox_id="p", output_path="/p", container_ids=["c"], options={"fast": "1"}),
        "options: 'fast' is not known; these are: none",
    ),
    "restore-pod-option": (
        validate.restore_pod,
        restore_request(options={"fast": "1"}),
        "options: 'fast' is not known; these are: tcp-established",
    ),
    "restore-pod-value": (
        validate.restore_pod,
        restore_request(options={"tcp-established": "keep"}),
        "options: tcp-established 'keep' is neither close nor refuse",
    ),
    "restore-pod-no-containers": (
        validate.restore_pod,
        restore_request(container_configs=[]),
        "container_configs is empty",
    ),
    "restore-pod-no-image": (
        validate.restore_pod,
        restore_request(container_configs=[pb.ContainerConfig(metadata=pb.ContainerMetadata(name="c"))]),
        "container_configs[0].image is missing",
    ),
    "restore-pod-climbing": (
        validate.restore_pod,
        restore_request(checkpoint_path="/a/../b"),
        "checkpoint_path '/a/../b' must not hold '..'",
    ),
    "stop-no-id": (validate.stop_container, pb.StopContainerRequest(), "container_id is empty"),
    "stop-negative": (
        validate.stop_container,
        pb.StopContainerRequest(container_id="c", timeout=-1),
        "timeout -1 is negative",
    ),
    "exec-no-id": (validate.exec_sync, pb.ExecSyncRequest(cmd=["true"]), "container_id is empty"),
    "exec-no-command": (validate.exec_sync, pb.ExecSyncRequest(container_id="c"), "cmd is empty"),
    "exec-too-large": (
        validate.exec_,
        pb.ExecRequest(container_id="c", cmd=["true", "x" * (2 << 20)], stdout=True),
        "the words of cmd have 2097158 bytes, at most 2097152 are allowed",
    ),
    "exec-empty-command": (
        validate.exec_sync,
        pb.ExecSyncRequest(container_id="c", cmd=["", "x"]),
        "cmd is empty",
    ),
    "exec-negative": (
        validate.exec_sync,
        pb.ExecSyncRequest(container_id="c", cmd=["true"], timeout=-5),
        "timeout -5 is negative",
    ),
    "exec-nul": (
        validate.exec_sync,
        pb.ExecSyncRequest(container_id="c", cmd=["a\0"]),
        "cmd[0] holds a NUL",
    ),
    "checkpoint-no-location": (
        validate.checkpoint_container,
        pb.CheckpointContainerRequest(container_id="c"),
        "location '' is not an absolute path",
    ),
    "checkpoint-parent": (
        validate.checkpoint_container,
        pb.CheckpointContainerRequest(container_id="c", location="/a/../c.tar"),
        "location '/a/../c.tar' must not hold '..'",
    ),
    "checkpoint-negative": (
        validate.checkpoint_container,
        pb.CheckpointContainerRequest(container_id="c", location="/c.tar", timeout=-1),
        "timeout -1 is negative",
    ),
    "update-nothing": (
        validate.update_container_resources,
        pb.UpdateContainerResourcesRequest(container_id="c"),
        "linux is missing",
    ),
    "update-windows": (
        validate.update_container_resources,
        pb.UpdateContainerResourcesRequest(
            container_id="c", linux={"cpu_shares": 2}, windows=pb.WindowsContainerResources(cpu_shares=2)
        ),
        "windows.cpu_shares is for Windows, and this node runs Linux",
    ),
    "update-shares": (
        validate.update_container_resources,
        pb.UpdateContainerResourcesRequest(container_id="c", linux=pb.LinuxContainerResources(cpu_shares=-1)),
        "linux.cpu_shares -1 is not between 2 and 262144",
    ),
    "update-pod-no-id": (
        validate.update_pod_sandbox_resources,
        pb.UpdatePodSandboxResourcesRequest(),
        "pod_sandbox_id is empty",
    ),
    "sandbox-no-id": (validate.pod_sandbox_id, pb.PodSandboxStatusRequest(), "pod_sandbox_id is empty"),
    "container-no-id": (validate.container_id, pb.ContainerStatusRequest(), "container_id is empty"),
    "no-image": (validate.image, pb.PullImageRequest(), "image is missing"),
    "empty-image": (
        validate.image,
        pb.RemoveImageRequest(image=pb.ImageSpec(image_ref="x")),
        "image.image is empty",
    ),
    "secret-with-nul": (
        validate.image,
        pb.PullImageRequest(image=pb.ImageSpec(image="x"), auth=pb.AuthConfig(password="hunter2\0")),
        "auth.password holds a NUL",
    ),
    "filter-state": (
        validate.well_formed,
        pb.ListContainersRequest(
            filter=pb.ContainerFilter(
                state=pb.ContainerStateValue(state=9)  # type: ignore[arg-type] # enums are open
            )
        ),
        "filter.state.state has the unknown value 9",
    ),
}


@pytest.mark.parametrize(("check", "request_", "message"), BAD.values(), ids=BAD)
def test_invalid_requests_are_refused(check: Callable[[Message], object], request_: Message, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(request_)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"container_id": ""}, "container_id is empty"),
        ({"cmd": []}, "cmd is empty"),
        ({"cmd": [""]}, "cmd is empty"),
        ({"stdout": False}, "stdin, stdout and stderr: at least one must be true"),
        ({"tty": True, "stderr": True}, "stderr must be false when tty is true: a terminal has one output"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_exec_and_attach_need_consistent_streams(changes: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"container_id": "c", "cmd": ["x"], "stdout": True} | changes
    with pytest.raises(InvalidArgument) as caught:
        validate.exec_(pb.ExecRequest(**values))
    assert str(caught.value) == words
    if "cmd" not in changes:
        del values["cmd"]
        with pytest.raises(InvalidArgument) as caught:
            validate.attach(pb.AttachRequest(**values))
        assert str(caught.value) == words


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ([80, 0], "port[1] 0 is not between 1 and 65535"),
        ([65536], "port[0] 65536 is not between 1 and 65535"),
        ([80] * 129, "port has 129 entries, at most 128 are allowed"),
    ],
    ids=["zero", "too high", "too many"],
)
def test_port_forward_needs_valid_ports(ports: list[int], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate.port_forward(pb.PortForwardRequest(pod_sandbox_id="s", port=ports))

    assert str(caught.value) == words
    validate.port_forward(pb.PortForwardRequest(pod_sandbox_id="s"))
