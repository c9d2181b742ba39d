"""Docker is stopped, crashes or hangs under the server."""

from collections.abc import Callable, Iterator

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import Cri, pod_config
from integration.pods.kubelet import Kubelet, failure, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

READS: dict[str, Callable[[Cri], object]] = {
    "ListPodSandbox": lambda cri: cri.sandboxes(),
    "ListContainers": lambda cri: cri.containers(),
    "ListImages": lambda cri: cri.images.ListImages(pb.ListImagesRequest()),
    "PodSandboxStatus": lambda cri: cri.sandbox_status("0" * 64),
    "ContainerStatus": lambda cri: cri.container_status("0" * 64),
    "StopPodSandbox": lambda cri: cri.stop("0" * 64),
    "RemovePodSandbox": lambda cri: cri.remove("0" * 64),
    "StopContainer": lambda cri: cri.stop_container("0" * 64),
    "RemoveContainer": lambda cri: cri.remove_container("0" * 64),
    "RunPodSandbox": lambda cri: cri.run(pod_config("nowhere")),
}


def code_of(call: Callable[[Cri], object], cri: Cri) -> grpc.StatusCode:
    """Return the status code of a call."""
    try:
        call(cri)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def condition(cri: Cri, kind: str) -> pb.RuntimeCondition:
    """Return a condition of Status."""
    conditions = cri.runtime.Status(pb.StatusRequest()).status.conditions
    return next(condition for condition in conditions if condition.type == kind)


@pytest.fixture
def _running_after(served: Served) -> Iterator[None]:
    """Start Docker again after the test, and wait until the server knows."""
    yield
    if not served.engine.daemon.running:
        served.engine.start()
    wait_until(lambda: code_of(READS["ListPodSandbox"], served.cri) == grpc.StatusCode.OK)


@pytest.mark.usefixtures("_running_after")
@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_without_docker_nothing_is_listed_as_empty(served: Served, images: Images, how: str) -> None:
    cri = served.cri
    before = served.snapshot()
    kubelet = Kubelet(cri, images.busybox)
    pod = kubelet.pod()
    container = kubelet.started(pod)
    (served.engine.stop if how == "stopped" else served.engine.kill)()

    wait_until(lambda: code_of(READS["ListPodSandbox"], cri) == grpc.StatusCode.UNAVAILABLE)
    assert {name: code_of(call, cri).name for name, call in READS.items()} == dict.fromkeys(READS, "UNAVAILABLE")
    now = condition(cri, "RuntimeReady")
    assert (now.status, now.reason) == (False, "DockerDaemonNotReady")
    assert str(served.engine.socket) in now.message
    assert condition(cri, "NetworkReady").status

    served.engine.start()
    wait_until(lambda: code_of(READS["ListPodSandbox"], cri) == grpc.StatusCode.OK)
    assert condition(cri, "RuntimeReady").status
    # Without live-restore a stopping daemon ends its containers, and a restarted one reports them as ended.
    assert cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    assert cri.container_status(container).state == pb.CONTAINER_EXITED
    kubelet.remove_all()
    assert served.snapshot() == before


def test_reads_do_not_wait_for_a_docker_that_hangs(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod)
    served.engine.freeze()
    try:
        assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY
        assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
        assert [one.id for one in served.cri.containers(id=container)] == [container]
    finally:
        served.engine.thaw()


def test_a_call_on_a_docker_that_hangs_ends_with_its_deadline(served: Served) -> None:
    before = served.snapshot()
    config = pod_config(unused_name("hanging"))
    served.engine.freeze()
    try:
        with pytest.raises(grpc.RpcError) as over:
            served.cri.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config), timeout=1)
    finally:
        served.engine.thaw()

    assert failure(over)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    sandbox = served.cri.run(config)
    assert served.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY

    def cleared() -> bool:
        # Docker may have made the container of the first call late: it is listed, and removed by the kubelet.
        served.clear()
        return served.snapshot() == before

    wait_until(cleared)
