from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import Cri
from integration.pods.kubelet import Kubelet, Pod, failure
from shim.api.v1 import api_pb2 as pb


@dataclass(frozen=True)
class Listed:
    """Two pods, the second stopped, with containers in every state."""

    ready: Pod
    stopped: Pod
    created: str
    running: str
    exited: str

    @property
    def names(self) -> dict[str, str]:
        """Map each id to its name in these tests."""
        return {
            self.ready.id: "ready",
            self.stopped.id: "stopped",
            self.created: "created",
            self.running: "running",
            self.exited: "exited",
        }


@pytest.fixture(scope="module")
def listed(served: Served, images: Images) -> Iterator[Listed]:
    """The pods and containers to filter, on a server without others."""
    kubelet = Kubelet(served.cri, images.busybox)
    ready = kubelet.pod(labels={"app": "web", "tier": "front"})
    stopped = kubelet.pod(labels={"app": "web", "tier": "back"})
    exited = kubelet.started(stopped, labels={"role": "main", "stage": "old"})
    kubelet.cri.stop(stopped.id)
    yield Listed(
        ready=ready,
        stopped=stopped,
        created=kubelet.created(ready, labels={"role": "init"}),
        running=kubelet.started(ready, labels={"role": "main", "stage": "new"}),
        exited=exited,
    )
    kubelet.remove_all()


def state(value: pb.PodSandboxState) -> pb.PodSandboxStateValue:
    return pb.PodSandboxStateValue(state=value)


def container_state(value: pb.ContainerState) -> pb.ContainerStateValue:
    return pb.ContainerStateValue(state=value)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["ready", "stopped"]),
        ({"state": state(pb.SANDBOX_READY)}, ["ready"]),
        ({"state": state(pb.SANDBOX_NOTREADY)}, ["stopped"]),
        ({"label_selector": {"app": "web"}}, ["ready", "stopped"]),
        ({"label_selector": {"app": "web", "tier": "back"}}, ["stopped"]),
        ({"label_selector": {"app": "db"}}, []),
        ({"label_selector": {"tier": "front"}, "state": state(pb.SANDBOX_NOTREADY)}, []),
        ({"id": "none"}, []),
    ],
    ids=str,
)
def test_listed_sandboxes_match_every_part_of_the_filter(
    listed: Listed, served: Served, filters: dict[str, Any], found: list[str]
) -> None:
    assert sorted(listed.names[sandbox.id] for sandbox in served.cri.sandboxes(**filters)) == found


@pytest.mark.parametrize("length", [64, 63, 13])
def test_a_sandbox_is_filtered_by_id_or_prefix(listed: Listed, served: Served, length: int) -> None:
    assert [sandbox.id for sandbox in served.cri.sandboxes(id=listed.stopped.id[:length])] == [listed.stopped.id]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["created", "exited", "running"]),
        ({"state": container_state(pb.CONTAINER_CREATED)}, ["created"]),
        ({"state": container_state(pb.CONTAINER_RUNNING)}, ["running"]),
        ({"state": container_state(pb.CONTAINER_EXITED)}, ["exited"]),
        ({"state": container_state(pb.CONTAINER_UNKNOWN)}, []),
        ({"label_selector": {"role": "main"}}, ["exited", "running"]),
        ({"label_selector": {"role": "main", "stage": "old"}}, ["exited"]),
        ({"label_selector": {"role": ""}}, []),
    ],
    ids=str,
)
def test_listed_containers_match_every_part_of_the_filter(
    listed: Listed, served: Served, filters: dict[str, Any], found: list[str]
) -> None:
    assert sorted(listed.names[container.id] for container in served.cri.containers(**filters)) == found


@pytest.mark.parametrize("length", [64, 13])
def test_containers_are_filtered_by_id_and_by_pod(listed: Listed, served: Served, length: int) -> None:
    of_pod = served.cri.containers(pod_sandbox_id=listed.ready.id[:length])
    assert {listed.names[container.id] for container in of_pod} == {"created", "running"}
    [one] = served.cri.containers(id=listed.running[:length])
    assert one.id == listed.running
    both = served.cri.containers(id=listed.running[:length], pod_sandbox_id=listed.stopped.id[:length])
    assert both == []


def test_streaming_lists_equal_the_unary_lists(listed: Listed, served: Served) -> None:
    runtime = served.cri.runtime
    pods = [pod for some in runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest()) for pod in some.pod_sandboxes]
    containers = [one for some in runtime.StreamContainers(pb.StreamContainersRequest()) for one in some.containers]

    assert sorted(pod.id for pod in pods) == sorted([listed.ready.id, listed.stopped.id])
    assert {one.id: one for one in containers} == {one.id: one for one in served.cri.containers()}


def test_every_call_takes_a_unique_prefix_of_an_id(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.created(pod)
    cri, sandbox, short = kubelet.cri, pod.id[:13], container[:13]

    assert cri.sandbox_status(sandbox).id == pod.id
    assert cri.container_status(short).id == container
    cri.start(short)
    assert cri.exec(short, "true").exit_code == 0
    cri.stop_container(short)
    assert cri.container_status(container).state == pb.CONTAINER_EXITED
    cri.remove_container(short)
    cri.stop(sandbox)
    cri.remove(sandbox)
    assert pod.id not in {listed.id for listed in cri.sandboxes()}


def ambiguous(ids: list[str]) -> str | None:
    """Return a prefix that two of the ids share."""
    beginnings = [container_id[:1] for container_id in ids]
    return next((letter for letter in beginnings if beginnings.count(letter) > 1), None)


VERBS: dict[str, Callable[[Cri, str], object]] = {
    "ContainerStatus": Cri.container_status,
    "StartContainer": Cri.start,
    "ExecSync": lambda cri, prefix: cri.exec(prefix, "true"),
    "StopContainer": Cri.stop_container,
    "RemoveContainer": Cri.remove_container,
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_ambiguous_prefix_is_an_error(served: Served, many: list[str], verb: str) -> None:
    prefix = ambiguous(many)
    assert prefix is not None

    with pytest.raises(grpc.RpcError) as refusal:
        VERBS[verb](served.cri, prefix)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert f"'{prefix}' fits" in message
    assert {container.id for container in served.cri.containers()} >= set(many)


@pytest.fixture(scope="module")
def many(served: Served, pod: Pod, images: Images) -> Iterator[list[str]]:
    """Enough containers that two of their ids share a prefix."""
    kubelet = Kubelet(served.cri, images.busybox)
    yield [kubelet.created(pod) for _ in range(17)]
    kubelet.remove_all()
