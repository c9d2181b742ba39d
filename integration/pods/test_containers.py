import time
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import Cri, pod_config
from integration.pods.kubelet import Kubelet, Pod, docker_name, failure, unused_name, wait_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

MIB = 1 << 20


def ended(cri: Cri, container_id: str) -> pb.ContainerStatus:
    """Wait for the exit of a container, and return its status."""

    def status() -> pb.ContainerStatus | None:
        found = cri.container_status(container_id)
        return found if found.state == pb.CONTAINER_EXITED else None

    found = wait_until(status)
    assert found is not None
    return found


# --- states, reasons and times ----------------------------------------------------------------------------


def test_times_are_nanoseconds_and_0_means_never(kubelet: Kubelet, pod: Pod) -> None:
    before = time.time_ns()
    container = kubelet.created(pod)
    created = kubelet.cri.container_status(container)
    assert before < created.created_at < time.time_ns()
    assert (created.started_at, created.finished_at) == (0, 0)

    kubelet.cri.start(container)
    running = kubelet.cri.container_status(container)
    assert created.created_at < running.started_at < time.time_ns()
    assert (running.created_at, running.finished_at) == (created.created_at, 0)

    kubelet.cri.stop_container(container)
    exited = kubelet.cri.container_status(container)
    assert (exited.created_at, exited.started_at) == (created.created_at, running.started_at)
    assert running.started_at < exited.finished_at < time.time_ns()
    assert any(stamp % 1_000_000 for stamp in (exited.created_at, exited.started_at, exited.finished_at))


@pytest.mark.parametrize(
    ("command", "exit_code", "reason"),
    [("exit 0", 0, "Completed"), ("exit 3", 3, "Error"), ("kill -9 $$", 137, "Error")],
    ids=["completed", "error", "killed"],
)
def test_an_exited_container_has_its_code_and_reason(
    kubelet: Kubelet, pod: Pod, command: str, exit_code: int, reason: str
) -> None:
    # The pod shares its processes: a shell that were process 1 could not be signalled from inside.
    container = kubelet.started(pod, "sh", "-c", command)

    status = ended(kubelet.cri, container)
    assert (status.exit_code, status.reason) == (exit_code, reason)


def test_running_out_of_memory_is_reported(kubelet: Kubelet, pod: Pod) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=16 * MIB)
    # A shell variable of 64 MiB: no file system holds the memory.
    hog = "x=$(head -c 65000000 /dev/zero | tr '\\0' x); exit 0"
    container = kubelet.started(pod, "sh", "-c", f'exec sh -c "{hog}"', linux=pb.LinuxContainerConfig(resources=limit))

    status = ended(kubelet.cri, container)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


def test_a_command_that_does_not_exist_is_a_start_error(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.created(pod, "/no/such/program")

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.start(container)

    assert "/no/such/program" in failure(refusal)[1]
    status = kubelet.cri.container_status(container)
    assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, 128, "StartError")
    assert "/no/such/program" in status.message
    assert 0 < status.created_at <= status.started_at <= status.finished_at


def test_a_container_starts_only_once(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, "true")
    ended(kubelet.cri, container)

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.start(container)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "CONTAINER_EXITED" in message


def trapping(kubelet: Kubelet, pod: Pod, trap: str, **fields: Any) -> str:
    """Start a shell with a trap, and wait until it is set."""
    flag = f"/dev/shm/{unused_name('trap')}"
    script = f"trap {trap}; touch {flag}; while :; do sleep 0.05; done"
    container = kubelet.started(pod, "sh", "-c", script, **fields)
    wait_until(lambda: kubelet.cri.exec(container, "test", "-e", flag).exit_code == 0)
    return container


def test_stop_waits_for_the_grace_period(kubelet: Kubelet, pod: Pod) -> None:
    container = trapping(kubelet, pod, "'exit 7' TERM")

    kubelet.cri.stop_container(container, timeout=20)

    status = kubelet.cri.container_status(container)
    assert (status.state, status.exit_code) == (pb.CONTAINER_EXITED, 7)


def test_stop_kills_after_the_grace_period(kubelet: Kubelet, pod: Pod) -> None:
    container = trapping(kubelet, pod, "'' TERM")

    began = time.monotonic()
    kubelet.cri.stop_container(container, timeout=1)

    assert 1 <= time.monotonic() - began < 60
    assert kubelet.cri.container_status(container).exit_code == 137


def test_a_second_stop_shortens_the_grace_period(kubelet: Kubelet, pod: Pod) -> None:
    container = trapping(kubelet, pod, "'' TERM")
    first = kubelet.cri.runtime.StopContainer.future(pb.StopContainerRequest(container_id=container, timeout=100))

    kubelet.cri.stop_container(container, timeout=0)

    assert kubelet.cri.container_status(container).state == pb.CONTAINER_EXITED
    first.result(timeout=60)


def test_stop_sends_the_requested_signal(kubelet: Kubelet, pod: Pod) -> None:
    container = trapping(kubelet, pod, "'exit 9' USR1", stop_signal=pb.SIGNAL_SIGUSR1)

    kubelet.cri.stop_container(container, timeout=20)

    status = kubelet.cri.container_status(container)
    assert (status.exit_code, status.stop_signal) == (9, pb.SIGNAL_SIGUSR1)


# --- identity ---------------------------------------------------------------------------------------------


def test_the_image_has_one_identity_everywhere(kubelet: Kubelet, pod: Pod, images: Images) -> None:
    container = kubelet.started(pod)

    spec = pb.ImageSpec(image=images.busybox)
    identity = kubelet.cri.images.ImageStatus(pb.ImageStatusRequest(image=spec)).image.id
    [listed] = kubelet.cri.containers(id=container)
    status = kubelet.cri.container_status(container)
    assert identity.startswith("sha256:")
    assert listed.image_id == listed.image_ref == status.image_id == identity
    assert status.image_ref
    assert listed.image == status.image == spec


def test_metadata_labels_and_annotations_come_back(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    labels, annotations = {"tier": "db", "empty": ""}, {"note": "ä=b,c", "hash": "1f"}
    metadata = pb.ContainerMetadata(name=unused_name("named"), attempt=3)
    container = kubelet.created(pod, metadata=metadata, labels=labels, annotations=annotations, log_path="c/0.log")

    [listed] = kubelet.cri.containers(id=container)
    status = kubelet.cri.container_status(container)
    for seen in (listed, status):
        assert (dict(seen.labels), dict(seen.annotations)) == (labels, annotations)
        assert seen.metadata == metadata
    assert listed.pod_sandbox_id == pod.id
    assert docker_name(served, container).endswith(f"_{pod.config.metadata.uid}_3")


def test_the_log_path_is_below_the_pods_directory(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(log_directory=str(served.dirs.logs / "some-pod"))
    container = kubelet.created(pod, log_path="main/0.log")

    assert kubelet.cri.container_status(container).log_path == str(served.dirs.logs / "some-pod/main/0.log")


def test_labels_of_an_image_do_not_become_the_containers(
    kubelet: Kubelet, pod: Pod, images: Images, served: Served
) -> None:
    injected = {
        "io.kubernetes.docker.type": "podsandbox",
        "io.kubernetes.sandbox.id": "0" * 64,
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.container.logpath": "/etc/shadow",
        "io.pydockershim.config": '{"metadata": {"name": "evil", "namespace": "kube-system", "uid": "1"}}',
        "io.pydockershim.runtime-handler": "evil",
        "annotation.evil": "yes",
        "maintainer": "other",
    }
    reference = "node.test/labelled:1"
    images.load(reference, {"Labels": injected})
    wait_image(kubelet.cri, reference)
    try:
        container = kubelet.started(pod, image=reference, labels={"app": "web"})
        [listed] = kubelet.cri.containers(id=container)
        assert dict(listed.labels) == {"app": "web"}
        assert not listed.annotations
        assert listed.pod_sandbox_id == pod.id
        assert listed.metadata.name.startswith("c-")
        assert kubelet.cri.container_status(container).log_path == ""
        assert container not in {sandbox.id for sandbox in kubelet.cri.sandboxes()}
    finally:
        kubelet.remove_all()
        served.engine.api.remove_image(reference)


def test_a_users_container_of_an_imitating_image_is_not_listed(served: Served, images: Images) -> None:
    reference = "node.test/labelled:2"
    labels = {"io.kubernetes.docker.type": "podsandbox", "io.pydockershim.config": "{}"}
    images.load(reference, {"Labels": labels})
    api = served.engine.api
    stranger = api.create_container(reference, name="of-a-user")["Id"]
    try:
        # Once a later pod is listed, the events about the stranger have been seen.
        marker = served.cri.run(pod_config("marker"))
        listed = {sandbox.id for sandbox in served.cri.sandboxes()}
        assert marker in listed
        assert stranger not in listed
        served.cri.remove(marker)
    finally:
        api.remove_container(stranger)
        api.remove_image(reference)


def test_a_container_of_a_missing_image_is_not_found(kubelet: Kubelet, pod: Pod) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, image="node.test/no/such:image")

    code, message = failure(refusal)
    assert code == grpc.StatusCode.NOT_FOUND
    assert "node.test/no/such:image" in message
