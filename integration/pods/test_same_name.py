"""Pods and Docker containers that need the same name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import NAMESPACE, Cri, pod_config
from integration.pods.kubelet import Kubelet, docker_name, failure, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.domain.labels import TYPE, TYPE_SANDBOX


def test_a_repeated_attempt_returns_the_same_sandbox(kubelet: Kubelet) -> None:
    pod = kubelet.pod()

    assert kubelet.cri.run(pod.config) == pod.id


def test_concurrent_requests_for_an_attempt_make_one_sandbox(cri: Cri, served: Served) -> None:
    config = pod_config(unused_name("twin"))
    before = served.snapshot()

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(lambda _: cri.run(config), range(4)))
    [sandbox] = ids
    cri.remove(sandbox)

    assert served.snapshot() == before


def test_the_next_attempt_makes_another_sandbox(kubelet: Kubelet, cri: Cri) -> None:
    pod = kubelet.pod()
    config = pod_config(pod.config.metadata.name, attempt=1)

    second = cri.run(config)
    assert second != pod.id
    assert {sandbox.id for sandbox in cri.sandboxes()} >= {pod.id, second}
    cri.remove(second)
    assert cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_a_stopped_sandbox_of_the_same_attempt_is_replaced(kubelet: Kubelet, served: Served) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    kubelet.cri.stop(pod.id)

    again = kubelet.cri.run(pod.config)
    assert again != pod.id
    assert pod.id not in {sandbox.id for sandbox in kubelet.cri.sandboxes()}
    kubelet.cri.remove(again)
    assert served.snapshot() == before


def name_of(config: pb.PodSandboxConfig) -> str:
    return f"k8s_POD_{config.metadata.name}_{NAMESPACE}_{config.metadata.uid}_0"


def test_only_the_duplicate_that_docker_made_late_is_removed(kubelet: Kubelet, served: Served, images: Images) -> None:
    before = served.snapshot()
    pod = kubelet.pod(dns_config=pb.DNSConfig(servers=["10.96.0.10"]))
    api = served.engine.api
    tags = api.inspect_container(pod.id)["Config"]["Labels"]
    host = api.create_host_config() | labels.ownership_fields(tags)
    twin = api.create_container(images.pause, name=name_of(pod.config) + "_late", labels=tags, host_config=host)["Id"]
    wait_until(lambda: served.cri.sandboxes(id=twin))

    served.cri.stop(twin)
    served.cri.remove(twin)

    assert kubelet.inside(kubelet.started(pod), "cat /etc/resolv.conf") == "nameserver 10.96.0.10\n"
    served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_a_dead_container_with_the_name_is_removed(kubelet: Kubelet, served: Served, images: Images) -> None:
    config = pod_config(unused_name("taken"))
    holder = served.engine.api.create_container(images.busybox, name=name_of(config), labels={TYPE: TYPE_SANDBOX})["Id"]

    sandbox = kubelet.cri.run(config)

    assert docker_name(served, sandbox) == name_of(config)
    assert holder not in served.snapshot().containers
    kubelet.cri.remove(sandbox)


def test_a_running_container_of_a_user_keeps_the_name(kubelet: Kubelet, served: Served, images: Images) -> None:
    config = pod_config(unused_name("taken"))
    api = served.engine.api
    holder = api.create_container(images.busybox, ["sleep", "600"], name=name_of(config))["Id"]
    api.start(holder)
    try:
        sandbox = kubelet.cri.run(config)
        assert docker_name(served, sandbox).startswith(name_of(config) + "_")
        assert kubelet.cri.sandbox_status(sandbox).metadata == config.metadata
        assert kubelet.cri.run(config) == sandbox
        kubelet.cri.remove(sandbox)
        assert holder in served.snapshot().containers
    finally:
        api.remove_container(holder, force=True)


def test_a_repeated_create_of_a_running_container_returns_it(kubelet: Kubelet, cri: Cri) -> None:
    pod = kubelet.pod()
    first = kubelet.started(pod)
    metadata = cri.container_status(first).metadata

    with pytest.raises(grpc.RpcError) as refused:
        kubelet.created(pod, metadata=metadata)
    assert failure(refused)[0] == grpc.StatusCode.ALREADY_EXISTS
    assert first in failure(refused)[1]
    assert [container.id for container in cri.containers(pod_sandbox_id=pod.id)] == [first]


def test_a_container_with_the_log_path_of_a_running_one_is_not_started(
    kubelet: Kubelet, cri: Cri, tmp_path: Path
) -> None:
    pod = kubelet.pod(log_directory=str(tmp_path))
    first = kubelet.started(pod, log_path="a.log")
    second = kubelet.created(pod, log_path="a.log")

    with pytest.raises(grpc.RpcError) as refused:
        cri.start(second)
    assert failure(refused)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert f"{first} writes to {tmp_path}/a.log" in failure(refused)[1]
    cri.stop_container(first)
    cri.start(second)


def test_containers_outside_of_pods_are_not_listed(cri: Cri, served: Served, images: Images) -> None:
    tags = {"io.kubernetes.docker.type": "container", "io.pydockershim.config": "{}"}
    other = served.engine.api.create_container(images.busybox, name="k8s-like", labels=tags)["Id"]
    try:
        wait_until(lambda: other in served.snapshot().containers)
        assert other not in {container.id for container in cri.containers()}
        with pytest.raises(grpc.RpcError) as unknown:
            cri.container_status(other)
        assert failure(unknown)[0] == grpc.StatusCode.NOT_FOUND
        cri.remove_container(other)
        assert other in served.snapshot().containers
    finally:
        served.engine.api.remove_container(other, force=True)
