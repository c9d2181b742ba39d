"""Clients that stop reading do not delay a container, the report of its exit, or other sessions."""

import array
import fcntl
import socket
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import websocket

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.cri import Cri
from integration.node.engine import Engine
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet, Pod, in_namespaces
from integration.sessions import Client, exec_client, exec_url
from integration.streaming.conftest import SECONDS
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.streaming.stalls import CHECK_SECONDS, STRICT_CHECK_SECONDS

CLIENTS = 100
SOON = 5.0
"""Bound in seconds: a delay by a client would be at least ten. Test machines are busy."""
PROTOCOL = "v4.channel.k8s.io"
STREAMS = tuple({"streamtype": kind} for kind in ("error", "stdout", "stderr"))

LINES, LINE = 12_000, 1_000
TALKS = (
    "while [ ! -e /go ]; do echo tick; sleep 0.1; done; "
    f"yes {'x' * (LINE - 1)} | head -n {LINES}; echo done; exec sleep 1000"
)
"""Writes more than all buffers hold once it reads a line."""
WRITES = 2
"""Seconds."""


@pytest.fixture(scope="module")
def roomy(engine: Engine, node: Node, images: Images) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server that allows a container as many sessions as the tests open."""
    dirs = make_node_dirs(node, new_home("stalled"))
    with serving(engine, dirs, network_plugin="none", streaming_max_sessions_per_container=2 * CLIENTS) as made:
        yield made


@pytest.fixture
def kubelet(roomy: Served, images: Images) -> Iterator[Kubelet]:
    made = Kubelet(roomy.cri, images.busybox)
    yield made
    made.remove_all()


@pytest.fixture
def pod(kubelet: Kubelet, tmp_path: Path) -> Pod:
    return kubelet.pod(log_directory=str(tmp_path))


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def attached(cri: Cri, container: str) -> Client:
    """Attach over SPDY, and stop reading after the first output."""
    url = cri.runtime.Attach(pb.AttachRequest(container_id=container, stdout=True, stderr=True)).url
    client = Client(url, PROTOCOL, *STREAMS)
    client.read_until(b"tick")
    return client


def attached_over_websocket(cri: Cri, container: str) -> websocket.WebSocket:
    url = cri.runtime.Attach(pb.AttachRequest(container_id=container, stdout=True, stderr=True)).url
    client = over_websocket(url)
    while b"tick" not in client.recv():
        pass
    return client


def over_websocket(url: str) -> websocket.WebSocket:
    return websocket.create_connection(
        url.replace("http://", "ws://"), subprotocols=[PROTOCOL], suppress_origin=True, timeout=SECONDS
    )


def wait_full(connected: socket.socket) -> None:
    """Wait until nothing more arrives at a client that does not read."""
    before = -1
    while before != (now := arrived(connected)) or not now:
        before = now
        time.sleep(0.3)  # silence means that the buffers are full


def arrived(connected: socket.socket) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connected, termios.FIONREAD, count)
    return count[0]


def exited(cri: Cri, container: str) -> bool:
    return cri.container_status(container).state == pb.CONTAINER_EXITED


def stop(roomy: Served, pod: Pod, container: str) -> None:  # noqa: ARG001
    roomy.cri.stop_container(container, timeout=0)


def stop_after_grace(roomy: Served, pod: Pod, container: str) -> None:  # noqa: ARG001
    roomy.cri.stop_container(container, timeout=1)


def remove_pod(roomy: Served, pod: Pod, container: str) -> None:  # noqa: ARG001
    roomy.cri.stop(pod.id)
    roomy.cri.remove(pod.id)


def kill_by_hand(roomy: Served, pod: Pod, container: str) -> None:  # noqa: ARG001
    roomy.engine.api.kill(container)


def end_by_itself(roomy: Served, pod: Pod, container: str) -> None:  # noqa: ARG001
    roomy.cri.exec(container, "touch", "/end")


@pytest.mark.parametrize("end", [stop, stop_after_grace, remove_pod, kill_by_hand, end_by_itself])
def test_the_exit_of_a_container_does_not_wait_for_clients(
    roomy: Served, kubelet: Kubelet, pod: Pod, clients: ExitStack, end: Callable[[Served, Pod, str], None]
) -> None:
    talks = TALKS.removesuffix("exec sleep 1000") + "while true; do echo more; done"
    script = f"({talks}) & while [ ! -e /end ]; do sleep 0.1; done"
    own = in_namespaces(pid=pb.CONTAINER)
    container = kubelet.started(pod, "sh", "-c", script, log_path="stalled.log", linux=own)
    urls = [exec_url(roomy.cri, container, "cat", "/dev/zero") for _ in range(2)]
    spdy = attached(roomy.cri, container), exec_client(urls[0])
    over = attached_over_websocket(roomy.cri, container), over_websocket(urls[1])
    for client in (*spdy, *over):
        clients.enter_context(closing(client))
    roomy.cri.exec(container, "touch", "/go")
    for connected in (*(each.socket for each in spdy), *(each.sock for each in over)):
        assert connected is not None
        wait_full(connected)

    began = time.monotonic()
    end(roomy, pod, container)
    if end is not remove_pod:
        wait_until(lambda: exited(roomy.cri, container))
    seconds = time.monotonic() - began
    print(f"{end.__name__}: {seconds:.2f} s")

    assert seconds < SOON


def test_an_exited_command_with_a_stalled_client_does_not_delay_others(
    roomy: Served, kubelet: Kubelet, pod: Pod, clients: ExitStack
) -> None:
    container = kubelet.started(pod)
    # Killed while it writes, it leaves more output than all buffers hold.
    script = f"timeout {WRITES} cat /dev/zero; touch /over; exit 3"
    stalled = exec_client(exec_url(roomy.cri, container, "sh", "-c", script))
    clients.enter_context(closing(stalled))
    wait_full(stalled.socket)

    began = time.monotonic()
    wait_until(lambda: b"over\n" in roomy.cri.exec(container, "ls", "/").stdout)
    roomy.cri.exec(container, "true")
    assert time.monotonic() - began < WRITES + SOON
    stalled.read_until(b'"reason":"ExitCode","message":"3"')


def test_a_hundred_stalled_clients_delay_their_container_by_no_more_than_the_bound(
    roomy: Served, kubelet: Kubelet, pod: Pod, tmp_path: Path, clients: ExitStack
) -> None:
    container = kubelet.started(pod, "sh", "-c", TALKS, log_path="stalled.log")
    stalled = [attached(roomy.cri, container) for _ in range(CLIENTS)]
    for each in stalled:
        clients.enter_context(closing(each))
    log = tmp_path / "stalled.log"

    roomy.cri.exec(container, "touch", "/go")
    began = time.monotonic()
    wait_until(lambda: log.read_bytes().endswith(b" F done\n"))
    seconds = time.monotonic() - began
    print(f"written after {seconds:.2f} s")
    assert seconds < 2 * CHECK_SECONDS + 2 * CLIENTS * STRICT_CHECK_SECONDS
    assert log.read_bytes().count(b" F " + b"x" * (LINE - 1) + b"\n") == LINES

    began = time.monotonic()
    roomy.cri.stop_container(container, timeout=0)
    print(f"stopped after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < SOON
    assert exited(roomy.cri, container)


def test_a_pod_with_a_stalled_port_forward_is_removed(
    roomy: Served, kubelet: Kubelet, pod: Pod, clients: ExitStack
) -> None:
    container = kubelet.started(pod, "sh", "-c", "cat /dev/zero | nc -l -p 8080")
    wait_until(lambda: b":8080" in roomy.cri.exec(container, "netstat", "-ltn").stdout)
    url = roomy.cri.runtime.PortForward(pb.PortForwardRequest(pod_sandbox_id=pod.id, port=[8080])).url
    streams = [{"streamtype": kind, "port": "8080", "requestid": "0"} for kind in ("error", "data")]
    stalled = Client(url, "portforward.k8s.io", *streams)
    clients.enter_context(closing(stalled))
    wait_full(stalled.socket)

    began = time.monotonic()
    roomy.cri.stop(pod.id)
    roomy.cri.remove(pod.id)
    assert time.monotonic() - began < SOON
