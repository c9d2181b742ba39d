"""Stop and Remove: repeated, concurrent, with unknown ids, and of containers that others removed."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.conftest import Images, Served
from integration.cri import Cri, container_config
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

VERBS: dict[str, Callable[[Cri, str], None]] = {
    "StopPodSandbox": Cri.stop,
    "RemovePodSandbox": Cri.remove,
    "StopContainer": Cri.stop_container,
    "RemoveContainer": Cri.remove_container,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("unknown", [str(uuid.uuid4()), "f" * 64, "no-such-id"], ids=["uuid", "hex", "name"])
def test_stop_and_remove_of_an_unknown_id_succeed(cri: Cri, verb: str, unknown: str) -> None:
    VERBS[verb](cri, unknown)


def test_a_name_is_not_an_id(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    for verb in VERBS.values():
        for identity in (pod.id, container):
            verb(served.cri, served.engine.api.inspect_container(identity)["Name"].removeprefix("/"))

    assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_container_calls_do_not_take_sandbox_ids_nor_the_reverse(cri: Cri, kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    cri.stop(container)
    cri.remove(container)
    cri.stop_container(pod.id)
    cri.remove_container(pod.id)

    assert cri.container_status(container).state == pb.CONTAINER_RUNNING
    assert cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_repeated_stop_and_remove_succeed(cri: Cri, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod)
    for verb, identity in (
        (Cri.stop_container, container),
        (Cri.remove_container, container),
        (Cri.stop, pod.id),
        (Cri.remove, pod.id),
    ):
        verb(cri, identity)
        verb(cri, identity)

    assert pod.id not in {sandbox.id for sandbox in cri.sandboxes()}


def test_concurrent_stop_and_remove_leave_nothing(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    container = kubelet.started(pod)
    calls = 3 * [(verb, container if name.endswith("Container") else pod.id) for name, verb in VERBS.items()]

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(verb, served.cri, identity) for verb, identity in calls]:
            done.result(timeout=60)

    assert served.snapshot() == before


# --- changes that others make in Docker ---------------------------------------------------------------------------


def test_a_container_removed_by_hand_is_gone(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    served.engine.api.remove_container(container, force=True)

    wait_until(lambda: not served.cri.containers(id=container))
    served.cri.stop_container(container)
    served.cri.remove_container(container)
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_a_container_killed_by_hand_is_reported_as_exited(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    served.engine.api.kill(container)

    status = wait_until(lambda: (s := served.cri.container_status(container)).state == pb.CONTAINER_EXITED and s)
    assert isinstance(status, pb.ContainerStatus)
    assert (status.exit_code, status.reason) == (137, "Error")


def test_a_container_restarted_by_hand_is_reported_as_running(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    first = served.cri.container_status(container).started_at
    served.engine.api.restart(container, timeout=0)

    wait_until(lambda: served.cri.container_status(container).started_at > first)
    assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING


def test_a_sandbox_killed_by_hand_is_not_ready(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    served.engine.api.kill(pod.id)

    wait_until(lambda: served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)
    served.cri.stop(pod.id)
    served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_a_sandbox_removed_by_hand_gives_its_address_back_on_stop(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    container = kubelet.started(pod)
    served.engine.api.remove_container(pod.id, force=True)

    wait_until(lambda: served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)
    [listed] = served.cri.sandboxes(id=pod.id)
    assert (listed.metadata, listed.state) == (pod.config.metadata, pb.SANDBOX_NOTREADY)
    assert served.snapshot().leases != before.leases
    served.cri.stop(pod.id)
    assert served.snapshot().leases == before.leases
    assert served.cri.container_status(container).state == pb.CONTAINER_EXITED
    served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_a_sandbox_removed_by_hand_is_replaced_by_the_same_attempt(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod(dns_config=pb.DNSConfig(servers=["10.96.0.10"]))
    served.engine.api.remove_container(pod.id, force=True)
    wait_until(lambda: served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)

    again = Pod(served.cri.run(pod.config), pod.config)

    assert [sandbox.id for sandbox in served.cri.sandboxes(label_selector=pod.config.labels)] == [again.id]
    served.cri.remove(pod.id)
    answer = served.cri.exec(kubelet.started(again), "cat", "/etc/resolv.conf")
    assert answer.stdout == b"nameserver 10.96.0.10\n"
    served.cri.remove(again.id)
    assert served.snapshot() == before


def test_a_sandbox_restarted_by_hand_is_not_ready(served: Served, kubelet: Kubelet) -> None:
    # Its new network namespace has no interface: a container made in it would have no network.
    before = served.snapshot()
    pod = kubelet.pod()
    first = served.engine.api.inspect_container(pod.id)["State"]["Pid"]
    served.engine.api.restart(pod.id, timeout=0)

    request = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)

    def seen() -> bool:
        info = served.cri.runtime.PodSandboxStatus(request).info["info"]
        return f'"pid":{first},' not in info and '"pid":0' not in info

    wait_until(seen)
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_a_pod_survives_docker_container_prune(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    dead, alive = kubelet.pod(), kubelet.pod()
    exited, running = kubelet.started(dead), kubelet.started(alive)
    served.engine.api.kill(dead.id)
    wait_until(lambda: served.cri.container_status(exited).state == pb.CONTAINER_EXITED)

    served.engine.api.prune_containers()  # type: ignore[no-untyped-call] # absent from types-docker

    wait_until(lambda: not served.cri.containers(id=exited))
    assert served.cri.container_status(running).state == pb.CONTAINER_RUNNING
    assert served.cri.sandbox_status(dead.id).state == pb.SANDBOX_NOTREADY
    for pod in (dead, alive):
        served.cri.stop(pod.id)
        served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_remove_waits_for_a_removal_in_progress(served: Served, kubelet: Kubelet, pod: Pod) -> None:
    containers = [kubelet.started(pod) for _ in range(4)]

    with ThreadPoolExecutor(8) as pool:
        by_hand = [pool.submit(served.engine.api.remove_container, each, force=True) for each in containers]
        by_us = [pool.submit(served.cri.remove_container, each) for each in containers]
        for done in by_us:
            done.result(timeout=60)
        for done in by_hand:
            done.exception(timeout=60)  # Docker answers the second with an error

    assert not set(containers) & served.snapshot().containers


def test_a_dead_container_with_the_name_is_replaced(served: Served, pod: Pod, images: Images) -> None:
    config = container_config("again", image=images.busybox)
    first = served.cri.create(pod.id, config, pod=pod.config)

    second = served.cri.create(pod.id, config, pod=pod.config)

    assert first not in {container.id for container in served.cri.containers()}
    served.cri.remove_container(second)
    assert served.cri.containers(id=second) == []
