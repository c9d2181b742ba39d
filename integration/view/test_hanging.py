"""A dockerd that is stopped with SIGSTOP: its socket accepts, and it does not answer.

Calls that need no Docker answer, others end with their deadline, and after SIGCONT the server is as before.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from integration.conftest import Images, NodeDirs, Served, make_node_dirs, serving
from integration.cri import HOST_NETWORK, Cri, container_config, pod_config
from integration.node.engine import Engine, own_link
from integration.node.isolation import OUTSIDE, OUTSIDE_ADDRESSES, Node, new_home
from integration.node.processes import size
from integration.pods.kubelet import Kubelet, unused_name
from integration.view.conftest import BRIDGE, configure_network
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.thread_pool import IDLE_SECONDS
from shim.domain.errors import DeadlineExceeded
from shim.engine.client import DockerEngine

STATUS_SECONDS = 20.0
READ_SECONDS = 20.0
"""Longest time of a read; a read that waits for Docker would never end."""
SHORT = 0.3
"""Deadline of an impatient client, in seconds."""
CALLS = 100
AT_ONCE = 25
SPARE = 6
"""Additional threads and descriptors that are no leak: kept connections to Docker, and grown pools."""


@pytest.fixture(scope="module")
def dirs(node: Node) -> NodeDirs:
    made = make_node_dirs(node, new_home("hanging"))
    configure_network(made)
    return made


@pytest.fixture(scope="module")
def hung(engine: Engine, images: Images, dirs: NodeDirs) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    with own_link(BRIDGE), serving(engine, dirs) as made:
        yield made


@pytest.fixture
def kubelet(hung: Served, images: Images) -> Iterator[Kubelet]:
    made = Kubelet(hung.cri, images.busybox)
    yield made
    made.remove_all()


@contextmanager
def frozen(served: Served) -> Iterator[None]:
    """Stop dockerd inside the block, and continue it afterwards."""
    served.engine.freeze()
    try:
        yield
    finally:
        served.engine.thaw()
    wait_until(lambda: runtime_condition(served.cri).status)
    served.wait_answers()


def runtime_condition(cri: Cri) -> pb.RuntimeCondition:
    return cri.runtime.Status(pb.StatusRequest()).status.conditions[0]


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_status_says_that_docker_hangs(hung: Served) -> None:
    assert runtime_condition(hung.cri).status
    with frozen(hung), ThreadPoolExecutor(10) as pool:
        # Docker's last answer before it was frozen counts for RECENT_SECONDS.
        wait_until(lambda: not runtime_condition(hung.cri).status)
        began = time.monotonic()
        asked = [pool.submit(runtime_condition, hung.cri) for _ in range(10)]
        found = [each.result() for each in asked]
        assert time.monotonic() - began < STATUS_SECONDS
    for condition in found:
        assert (condition.type, condition.status, condition.reason) == ("RuntimeReady", False, "DockerDaemonNotReady")
        assert "ping Docker: Docker did not answer within 4 s" in condition.message


def test_reads_are_answered_from_the_view(hung: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)
    cri = hung.cri
    image = pb.ImageStatusRequest(image=pb.ImageSpec(image=kubelet.image))
    reads: dict[str, Callable[[], object]] = {
        "Version": lambda: cri.runtime.Version(pb.VersionRequest()),
        "RuntimeConfig": lambda: cri.runtime.RuntimeConfig(pb.RuntimeConfigRequest()),
        "ListPodSandbox": cri.sandboxes,
        "ListContainers": cri.containers,
        "PodSandboxStatus": lambda: cri.sandbox_status(pod.id),
        "ContainerStatus": lambda: cri.container_status(container),
        "ContainerStats": lambda: cri.runtime.ContainerStats(pb.ContainerStatsRequest(container_id=container)),
        "ListContainerStats": lambda: cri.runtime.ListContainerStats(pb.ListContainerStatsRequest()),
        "PodSandboxStats": lambda: cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=pod.id)),
        "ListPodSandboxStats": lambda: cri.runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest()),
        "ListMetricDescriptors": lambda: cri.runtime.ListMetricDescriptors(pb.ListMetricDescriptorsRequest()),
        "ListPodSandboxMetrics": lambda: cri.runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest()),
        "ListImages": lambda: cri.images.ListImages(pb.ListImagesRequest()),
        "ImageStatus": lambda: cri.images.ImageStatus(image),
        "ImageFsInfo": lambda: cri.images.ImageFsInfo(pb.ImageFsInfoRequest()),
    }
    with frozen(hung):
        took = {name: timed(read) for name, read in reads.items()}
        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
    assert {name: seconds for name, seconds in took.items() if seconds > READ_SECONDS} == {}


def calls_that_need_docker(
    cri: Cri, *, pod: str, container: str, victim: str, image: str
) -> dict[str, Callable[[], object]]:
    runtime, images, config = cri.runtime, cri.images, pod_config(unused_name("hanging"), linux=HOST_NETWORK)
    unknown = pb.ImageSpec(image="127.0.0.1:9/missing/image:1")
    limits = pb.LinuxContainerResources(cpu_shares=100)
    new = container_config(unused_name("hanging"), image=image)
    create = pb.CreateContainerRequest(pod_sandbox_id=pod, config=new, sandbox_config=config)
    update = pb.UpdateContainerResourcesRequest(container_id=container, linux=limits)
    run = pb.ExecSyncRequest(container_id=container, cmd=["true"], timeout=30)
    stop = pb.StopContainerRequest(container_id=victim, timeout=10)
    return {
        "RunPodSandbox": lambda: runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config), timeout=SHORT),
        "CreateContainer": lambda: runtime.CreateContainer(create, timeout=SHORT),
        "UpdateContainerResources": lambda: runtime.UpdateContainerResources(update, timeout=SHORT),
        "ExecSync": lambda: runtime.ExecSync(run, timeout=SHORT),
        "StopContainer": lambda: runtime.StopContainer(stop, timeout=SHORT),
        "Status": lambda: runtime.Status(pb.StatusRequest(), timeout=SHORT),
        "PullImage": lambda: images.PullImage(pb.PullImageRequest(image=unknown), timeout=SHORT),
        "ImageStatus": lambda: images.ImageStatus(pb.ImageStatusRequest(image=unknown), timeout=SHORT),
        "RemoveImage": lambda: images.RemoveImage(pb.RemoveImageRequest(image=unknown), timeout=SHORT),
        "ImageStatus of one that is here": lambda: images.ImageStatus(
            pb.ImageStatusRequest(image=pb.ImageSpec(image=image), verbose=True), timeout=SHORT
        ),
    }


def code_of(call: Callable[[], object]) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def open_in(served: Served) -> tuple[int, int]:
    """Return the numbers of the server's threads and descriptors."""
    now = size(served.server.daemon.pid)
    return now.threads, now.descriptors


def settled(served: Served) -> tuple[int, int]:
    """Return the numbers of threads and descriptors once idle threads have ended."""
    until = time.monotonic() + IDLE_SECONDS + 2
    return wait_until(lambda: open_in(served) if time.monotonic() > until else None, 60) or (0, 0)


def test_calls_end_with_their_deadline_and_leave_nothing(hung: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)

    def burst() -> dict[str, set[str]]:
        """Return the status codes of the calls by name."""
        victim = kubelet.started(pod)  # Docker may stop it after SIGCONT
        calls = calls_that_need_docker(hung.cri, pod=pod.id, container=container, victim=victim, image=kubelet.image)
        with frozen(hung), ThreadPoolExecutor(AT_ONCE) as pool:
            # Docker's last answer before it was frozen counts for RECENT_SECONDS. A short deadline shows nothing:
            # on a busy machine it passes although Docker answers.
            wait_until(lambda: not runtime_condition(hung.cri).status)
            asked = [
                (name, pool.submit(code_of, call)) for _ in range(CALLS // len(calls)) for name, call in calls.items()
            ]
            return {name: {each.result(60).name for other, each in asked if other == name} for name in calls}

    burst()  # makes the pool of RPC threads grow
    threads, descriptors = settled(hung)
    ended = burst()
    # The server runs commands itself.
    assert {name: codes for name, codes in ended.items() if codes != {"DEADLINE_EXCEEDED"}} == {"ExecSync": {"OK"}}

    def is_as_before() -> bool:
        now = open_in(hung)
        return now[0] <= threads + SPARE and now[1] <= descriptors + SPARE

    wait_until(is_as_before, 60)
    hung.clear()


def crash_and_start(served: Served, *, meanwhile: Callable[[], object] = lambda: None) -> None:
    served.server.kill()
    served.server.socket.unlink()  # a start waits for its appearance
    meanwhile()
    served.server.start()


def test_a_server_started_while_docker_hangs_answers_from_its_saved_state(hung: Served) -> None:
    runtime = hung.cri.runtime
    version = runtime.Version(pb.VersionRequest())
    driver = runtime.RuntimeConfig(pb.RuntimeConfigRequest())
    with frozen(hung):
        crash_and_start(hung)
        # Includes the start of the server: seconds on a busy machine, without end if it waited for Docker.
        assert runtime.Version(pb.VersionRequest(), wait_for_ready=True, timeout=60) == version
        assert runtime.RuntimeConfig(pb.RuntimeConfigRequest()) == driver
        with pytest.raises(grpc.RpcError) as refused:
            hung.cri.containers()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        condition = runtime_condition(hung.cri)
        assert (condition.status, condition.reason) == (False, "DockerDaemonNotReady")


def test_a_server_that_docker_never_answered_gives_the_remedy(hung: Served, dirs: NodeDirs) -> None:
    runtime = hung.cri.runtime
    with frozen(hung):
        crash_and_start(hung, meanwhile=lambda: (dirs.state / "engine.json").write_bytes(b"damaged"))
        for question in (  # the first includes the start of the server
            lambda: runtime.Version(pb.VersionRequest(), wait_for_ready=True, timeout=60),
            lambda: runtime.RuntimeConfig(pb.RuntimeConfigRequest(), timeout=60),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                question()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "systemctl start docker" in str(refused.value.details())
    assert runtime.Version(pb.VersionRequest()).runtime_version
    assert "ignored stored engine facts" in hung.server.daemon.log.read_text()


@contextmanager
def silent_name_server() -> Iterator[None]:
    """Make the node's name server accept every query and answer none inside the block."""
    address = OUTSIDE_ADDRESSES[0].partition("/")[0]
    script = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        f"s.bind(({address!r}, 53)); print('bound', flush=True); sys.stdin.read()"
    )
    argv = ["nsenter", f"--net={OUTSIDE}", sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bound\n"
        yield
        process.kill()


@pytest.fixture(scope="module")
def untrusting(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """A server that reads Docker's info for each Status, and not only once a minute."""
    made = make_node_dirs(node, new_home("untrusting"))
    configure_network(made)
    patched = "from shim.dockerd import facts; facts.INFO_AGE = 0; "

    program = (sys.executable, "-c", f"{patched}from shim import cli; raise SystemExit(cli.main())")
    with own_link(BRIDGE), serving(engine, made, program) as served:
        yield served


def info_waits(adapter: DockerEngine) -> bool:
    try:
        with deadline.bound(1):
            adapter.info()
    except DeadlineExceeded:
        return True
    return False


def test_status_answers_while_docker_resolves_the_name_of_a_registry(
    untrusting: Served, engine: Engine, engine_name: str
) -> None:
    """Meanwhile Engine 20.10 holds a lock that its info needs."""
    adapter = DockerEngine(engine.url, request_timeout=60)
    image = pb.ImageSpec(image="registry.no-answer.test/missing/image:1")
    assert runtime_condition(untrusting.cri).status
    with silent_name_server():
        pull = untrusting.cri.images.PullImage.future(pb.PullImageRequest(image=image), timeout=120)
        if engine_name == "20.10":
            wait_until(lambda: info_waits(adapter))
        began = time.monotonic()
        assert runtime_condition(untrusting.cri).status
        assert time.monotonic() - began < STATUS_SECONDS
        pull.cancel()
    wait_until(lambda: not info_waits(adapter), 60)
    adapter.close()
