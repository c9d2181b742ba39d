"""Runtime handlers: those the node advertises, and pods and containers that use them."""

import grpc
import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import ORDERED_RUNTIME


def test_the_handlers_are_dockers_runtimes_except_the_servers_own(kubelet: Kubelet, served: Served) -> None:
    answer = kubelet.cri.runtime.Status(pb.StatusRequest())

    docker = {*served.engine.api.info()["Runtimes"]}
    assert {one.name for one in answer.runtime_handlers} == {"", *docker} - {ORDERED_RUNTIME}
    assert ORDERED_RUNTIME in docker


def test_runc_advertises_user_namespaces_once_the_node_was_tested(kubelet: Kubelet) -> None:
    wait_until(lambda: kubelet.cri.runtime.Status(pb.StatusRequest()).features.user_namespaces_host_network, seconds=10)
    handlers = kubelet.cri.runtime.Status(pb.StatusRequest()).runtime_handlers

    promised = {one.name for one in handlers if one.features.user_namespaces}
    assert {"", "runc"} <= promised
    assert promised <= {"", "runc", "io.containerd.runc.v2"}


def test_an_engine_without_features_advertises_no_recursive_read_only_mounts(kubelet: Kubelet, served: Served) -> None:
    reported = any("status" in runtime for runtime in served.engine.api.info()["Runtimes"].values())
    answer = kubelet.cri.runtime.Status(pb.StatusRequest())

    assert any(one.features.recursive_read_only_mounts for one in answer.runtime_handlers) <= reported


def test_containers_run_under_the_handler_of_their_pod(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(handler="io.containerd.runc.v2")
    container = kubelet.started(pod)

    for made in (pod.id, container):
        assert served.engine.api.inspect_container(made)["HostConfig"]["Runtime"] == "io.containerd.runc.v2"
    assert kubelet.inside(container, "echo runs") == "runs\n"


@pytest.mark.parametrize("handler", ["none-such", "../runc", "runc\n"])
def test_an_unknown_handler_is_refused_with_the_known_ones(kubelet: Kubelet, served: Served, handler: str) -> None:
    before = served.snapshot()

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(handler=handler)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("runtime_handler: Docker has no runtime")
    assert "runc" in message
    assert served.snapshot() == before
