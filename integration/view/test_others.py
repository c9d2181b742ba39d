"""Changes by others are reported: by Docker's command line, a builder, the kernel."""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import docker
import grpc
import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.pods.kubelet import Kubelet, failure, unused_name
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

AT_ONCE_SECONDS = 20
"""Longest time until an event's change is seen; the next comparison with Docker is a minute away."""


@pytest.fixture
def api(proxied: Served) -> docker.APIClient:
    """Connect with Docker's library, without the proxy."""
    return proxied.engine.api


@pytest.mark.parametrize(
    ("operation", "exit_code"),
    [
        (lambda api, container: api.stop(container, timeout=10), 143),
        (lambda api, container: api.kill(container, signal="SIGTERM"), 143),
        (lambda api, container: api.kill(container), 137),
    ],
    ids=["stop", "kill -TERM", "kill"],
)
def test_a_container_ended_by_others_is_reported_as_exited(
    kubelet: Kubelet, api: docker.APIClient, operation: Callable[[docker.APIClient, str], None], exit_code: int
) -> None:
    command = ("sh", "-c", "trap 'exit 143' TERM; sleep 3600 & wait")
    container = kubelet.started(kubelet.pod(linux=HOST_NETWORK), *command)
    # Process 1 of a container ignores signals without a trap.
    wait_until(lambda: "sleep" in kubelet.cri.exec(container, "ps").stdout.decode())
    operation(api, container)
    status = wait_exited(kubelet, container)
    assert (status.exit_code, status.reason) == (exit_code, "Error")


def wait_exited(kubelet: Kubelet, container: str, seconds: float = 30) -> pb.ContainerStatus:
    def exited() -> pb.ContainerStatus | None:
        try:
            status = kubelet.cri.container_status(container)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:  # while the view is rebuilt
                return None
            raise
        return status if status.state == pb.CONTAINER_EXITED else None

    status = wait_until(exited, seconds)
    assert status is not None
    return status


def test_containers_removed_by_others_are_not_listed(kubelet: Kubelet, api: docker.APIClient) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    removed, pruned, running = kubelet.started(pod), kubelet.started(pod), kubelet.started(pod)
    kubelet.cri.stop_container(pruned)
    api.remove_container(removed, force=True)
    api.prune_containers()  # type: ignore[no-untyped-call] # a gap in the stubs
    wait_until(lambda: [container.id for container in kubelet.cri.containers()] == [running])
    with pytest.raises(grpc.RpcError) as raised:
        kubelet.cri.container_status(pruned)
    assert failure(raised)[0] is grpc.StatusCode.NOT_FOUND
    # Both are gone already, so their removal succeeds.
    kubelet.cri.stop_container(removed)
    kubelet.cri.remove_container(pruned)


def test_images_that_others_make_and_remove_are_reported(kubelet: Kubelet, api: docker.APIClient) -> None:
    def known(reference: str) -> pb.Image | None:
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=reference))
        answer = kubelet.cri.images.ImageStatus(request)
        return answer.image if answer.HasField("image") else None

    tagged, built = f"test.example/{unused_name('tagged')}:v1", f"test.example/{unused_name('built')}:v1"
    assert api.tag(kubelet.image, tagged.rpartition(":")[0], "v1")
    image = wait_until(lambda: known(tagged))
    assert image is not None
    assert image.id == (known(kubelet.image) or pb.Image()).id

    dockerfile = f"FROM {kubelet.image}\nLABEL made={built}\nUSER 1000\n"
    output = list(api.build(fileobj=io.BytesIO(dockerfile.encode()), tag=built, rm=True))
    made = wait_until(lambda: known(built))
    assert made is not None, output
    assert (made.id != image.id, made.uid.value) == (True, 1000)

    for reference in (tagged, built):
        api.remove_image(reference)
    wait_until(lambda: not known(tagged) and not known(built))
    assert known(kubelet.image)


def built(api: docker.APIClient, base: str, *instructions: str) -> str:
    """Build an image with the classic builder; return its reference."""
    reference = f"test.example/{unused_name('built')}:v1"
    dockerfile = "\n".join((f"FROM {base}", *instructions))
    output = list(api.build(fileobj=io.BytesIO(dockerfile.encode()), tag=reference, rm=True, decode=True))
    assert not any("error" in line for line in output), output
    return reference


def listed_images(kubelet: Kubelet) -> set[str]:
    answer = kubelet.cri.images.ListImages(pb.ListImagesRequest())
    return {reference for image in answer.images for reference in image.repo_tags}


def test_a_just_built_image_can_be_run(kubelet: Kubelet, api: docker.APIClient) -> None:
    """A kubelet with pull policy IfNotPresent finds the image, and runs it by its id."""
    reference = built(api, kubelet.image, "RUN echo made here >/made", 'CMD ["sleep", "3600"]')
    wait_until(lambda: reference in listed_images(kubelet), AT_ONCE_SECONDS)
    found = kubelet.cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=reference))).image

    container = kubelet.started(kubelet.pod(linux=HOST_NETWORK), image=found.id)

    assert kubelet.inside(container, "cat /made") == "made here\n"
    assert kubelet.cri.container_status(container).image_id == found.id
    kubelet.cri.remove_container(container)
    api.remove_image(reference)


def prune(api: docker.APIClient, *, label: str) -> None:
    """Do the same as `docker system prune --all`, but prune only images with the label: other tests own the rest."""
    api.prune_containers()  # type: ignore[no-untyped-call] # a gap in the stubs, as below
    api.prune_networks()  # type: ignore[no-untyped-call]
    api.prune_images({"dangling": False, "label": label})  # type: ignore[no-untyped-call]
    api.prune_builds()


def test_pods_survive_docker_system_prune(kubelet: Kubelet, api: docker.APIClient, proxied: Served) -> None:
    before = proxied.snapshot()
    label = unused_name("prune")
    used, unused = (built(api, kubelet.image, f"LABEL {label}=1 number={number}") for number in range(2))
    wait_until(lambda: {used, unused} <= listed_images(kubelet))
    network = api.create_network(label)["Id"]
    pod, dead = kubelet.pod(), kubelet.pod()
    running, ended = kubelet.started(pod, image=used), kubelet.started(pod)
    waiting = kubelet.created(pod)
    kubelet.cri.stop_container(ended)
    api.kill(dead.id)
    wait_until(lambda: kubelet.cri.sandbox_status(dead.id).state == pb.SANDBOX_NOTREADY)

    prune(api, label=label)

    wait_until(lambda: [one.id for one in kubelet.cri.containers()] == [running], AT_ONCE_SECONDS)
    wait_until(lambda: unused not in listed_images(kubelet), AT_ONCE_SECONDS)
    assert used in listed_images(kubelet)
    assert network not in {row["Id"] for row in api.networks()}
    assert waiting not in {row["Id"] for row in api.containers(all=True)}
    states = {one.id: one.state for one in kubelet.cri.sandboxes()}
    # The address of the pod whose pause was pruned is still reserved.
    assert states == {pod.id: pb.SANDBOX_READY, dead.id: pb.SANDBOX_NOTREADY}
    assert kubelet.inside(running, "echo still here") == "still here\n"
    for one in (dead, pod):
        kubelet.cri.stop(one.id)
        kubelet.cri.remove(one.id)
    assert before.added(proxied.snapshot()) == []
    api.remove_image(used)


def test_a_sandbox_whose_pause_was_killed_is_not_ready(
    kubelet: Kubelet, api: docker.APIClient, proxied: Served
) -> None:
    """Stop releases its network as usual."""
    before = proxied.snapshot()
    pod = kubelet.pod()
    api.kill(pod.id)
    wait_until(lambda: kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)
    assert [sandbox.state for sandbox in kubelet.cri.sandboxes(id=pod.id)] == [pb.SANDBOX_NOTREADY]
    assert proxied.snapshot().leases > before.leases

    kubelet.cri.stop(pod.id)
    stopped = proxied.snapshot()
    assert (stopped.leases, stopped.namespaces) == (before.leases, before.namespaces)
    kubelet.cri.remove(pod.id)
    assert before.added(proxied.snapshot()) == []


def test_stop_releases_the_network_of_a_sandbox_whose_pause_was_removed(
    kubelet: Kubelet, api: docker.APIClient, proxied: Served
) -> None:
    before = proxied.snapshot()
    pod = kubelet.pod()
    api.remove_container(pod.id, force=True)
    wait_until(lambda: kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)
    kubelet.cri.stop(pod.id)
    kubelet.cri.remove(pod.id)
    assert kubelet.cri.sandboxes(id=pod.id) == []
    assert before.added(proxied.snapshot()) == []


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_exit_that_docker_misses_is_reported(kubelet: Kubelet, api: docker.APIClient, proxy: DockerProxy) -> None:
    """A hanging containerd-shim does not report its container's exit, and Docker goes on reporting it as running."""
    container = kubelet.started(kubelet.pod(linux=HOST_NETWORK))
    pid = int(api.inspect_container(container)["State"]["Pid"])
    shim = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(shim, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_zombie(pid))
        proxy.cut()  # the next comparison with Docker, up to a minute early
        status = wait_exited(kubelet, container, seconds=30)
        assert (status.exit_code, status.reason) == (255, "Unknown")
        assert "Docker has missed the exit" in status.message
        assert api.inspect_container(container)["State"]["Running"]
        assert [one.id for one in kubelet.cri.containers(state=pb.ContainerStateValue(state=pb.CONTAINER_EXITED))] == [
            container
        ]
    finally:
        os.kill(shim, signal.SIGCONT)
    # Now Docker learns of the exit too, with its code.
    wait_until(lambda: kubelet.cri.container_status(container).exit_code == 137)
    assert kubelet.cri.container_status(container).reason == "Error"
