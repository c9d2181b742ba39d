"""Identity of containers: a renamed container stays in its pod, and a user's container never becomes part of a pod."""

from collections.abc import Sequence

import pytest

from integration.by_hand.hands import Hands, stranger, unused_image
from integration.conftest import Images
from integration.pods.kubelet import docker_name, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def test_renamed_containers_stay_in_their_pod(hands: Hands) -> None:
    for container in (hands.pod.id, hands.app):
        hands.docker("rename", container, unused_name("mine"))
    wait_until(lambda: "mine-" in hands.served.cri.runtime.ContainerStatus(verbose(hands.app)).info["info"])
    hands.assert_untouched()
    hands.restart_server()
    hands.assert_untouched()
    [sandbox] = hands.served.cri.sandboxes(id=hands.pod.id)
    assert (sandbox.metadata, sandbox.labels) == (hands.pod.config.metadata, hands.pod.config.labels)
    assert hands.status().metadata == pb.ContainerMetadata(name="app")
    assert hands.served.cri.run(hands.pod.config) == hands.pod.id
    hands.wait_lines()
    hands.end()


def verbose(container: str) -> pb.ContainerStatusRequest:
    return pb.ContainerStatusRequest(container_id=container, verbose=True)


def test_a_pod_with_renamed_containers_is_removed_without_a_stop(hands: Hands) -> None:
    for container in (hands.pod.id, hands.app):
        hands.docker("rename", container, unused_name("mine"))
    hands.served.cri.remove(hands.pod.id)
    assert hands.before.added(hands.served.snapshot()) == []


def test_swapped_names_do_not_confuse_the_server(hands: Hands) -> None:
    """The next container gets a fresh name."""
    pod, app = docker_name(hands.served, hands.pod.id), docker_name(hands.served, hands.app)
    hands.docker("rename", hands.pod.id, "aside")
    hands.docker("rename", hands.app, pod)
    hands.docker("rename", hands.pod.id, app)
    hands.restart_server()
    hands.assert_untouched()
    other = hands.kubelet.started(hands.pod, metadata=pb.ContainerMetadata(name="other"))
    again = hands.kubelet.created(hands.pod, metadata=pb.ContainerMetadata(name="app", attempt=1))
    assert sorted(hands.listed()) == sorted((hands.app, other, again))
    hands.end()


@pytest.fixture
def committed(hands: Hands) -> str:
    """Commit the container to an image, which inherits its labels."""
    image = unused_image("committed")
    hands.docker("commit", hands.app, image)
    assert "io.pydockershim.created-as" in hands.docker("image", "inspect", image)
    return image


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--init=false",),
        ("--init=false", "--userns", "host", "--ipc", "container:{pod}", "--network", "container:{pod}"),
        ("--init=false", "--userns", "host", "--name", "{name}", "--network", "container:{pod}"),
        ("--name", "{name}"),
    ],
    ids=["plain", "no init", "in the pod", "in the pod, with a name of it", "name"],
)
def test_a_container_of_a_committed_image_belongs_to_no_pod(
    hands: Hands, committed: str, options: Sequence[str]
) -> None:
    name = docker_name(hands.served, hands.app)
    hands.docker("rename", hands.app, "mine")
    given = [option.format(pod=hands.pod.id, name=name) for option in options]
    other = stranger(hands, committed, *given)
    try:
        hands.docker("restart", "--time", "0", other)
        hands.assert_untouched()
        hands.restart_server()
        hands.assert_untouched()
        hands.served.cri.stop(hands.pod.id)
        hands.served.cri.remove(hands.pod.id)
        assert hands.docker("inspect", "--format", "{{.State.Status}}", other) == "running"
    finally:
        hands.docker("rm", "--force", "--volumes", other)
        hands.docker("rmi", committed)
    assert hands.before.added(hands.served.snapshot()) == []


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
def test_a_name_taken_by_a_user_stays_with_the_user(hands: Hands, committed: str, runs: bool) -> None:
    """A rename frees the name, and a container of a committed image takes it: the pod's next attempt gets a suffix."""
    name = docker_name(hands.served, hands.app)
    hands.docker("rename", hands.app, "mine")
    other = stranger(hands, committed, "--name", name)
    if not runs:
        hands.docker("kill", other)
    hands.served.cri.stop_container(hands.app)
    try:
        again = hands.kubelet.started(hands.pod, metadata=pb.ContainerMetadata(name="app"))
        assert hands.listed() == [again]  # the renamed container was its earlier attempt
        assert docker_name(hands.served, again).startswith(f"{name}_")
        assert docker_name(hands.served, other) == name
    finally:
        hands.docker("rm", "--force", "--volumes", other)
        hands.docker("rmi", committed)
    hands.end()


def test_a_container_of_version_0_1_stays_in_its_pod(hands: Hands, images: Images) -> None:
    """Its HostConfig and labels lack the name under which it was created."""
    api = hands.served.engine.api
    seen = api.inspect_container(hands.app)
    tags = {key: value for key, value in seen["Config"]["Labels"].items() if key != "io.pydockershim.created-as"}
    hands.served.cri.remove_container(hands.app)
    host = {**seen["HostConfig"], "ContainerIDFile": ""}
    made = api.create_container(images.busybox, ["sleep", "3600"], name="older", labels=tags, host_config=host)["Id"]
    wait_until(lambda: hands.listed() == [made])
    hands.docker("start", made)
    hands.restart_server()
    assert hands.listed() == [made]
    hands.end()
