"""Runtime handlers: what the node says it has, and pods and containers that use them."""

import grpc
import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, failure
from shim.api.v1 import api_pb2 as pb


def test_the_handlers_are_dockers_runtimes_and_promise_no_user_namespaces(kubelet: Kubelet, served: Served) -> None:
    answer = kubelet.cri.runtime.Status(pb.StatusRequest())

    assert {one.name for one in answer.runtime_handlers} == {"", *served.engine.api.info()["Runtimes"]}
    assert not any(one.features.user_namespaces for one in answer.runtime_handlers)
    assert not answer.features.user_namespaces_host_network


def test_an_engine_without_features_promises_no_recursive_read_only_mounts(kubelet: Kubelet, served: Served) -> None:
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
