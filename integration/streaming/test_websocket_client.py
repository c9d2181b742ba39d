"""A WebSocket client of a third project, which connects to the URL directly."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import websocket

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod
from integration.streaming.conftest import SECONDS
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

EXIT_3 = ["sh", "-c", "read line; echo got $line; exit 3"]


@pytest.fixture
def container(pod: Pod, served: Served) -> str:
    """Return the container of the shared pod."""
    return served.cri.containers(pod_sandbox_id=pod.id)[0].id


@contextmanager
def connected(url: str, protocol: str) -> Iterator[websocket.WebSocket]:
    """Connect to a URL with a subprotocol."""
    made = websocket.create_connection(
        url.replace("http://", "ws://"), subprotocols=[protocol], suppress_origin=True, timeout=SECONDS
    )
    try:
        yield made
    finally:
        made.shutdown()  # type: ignore[no-untyped-call] # missing in its types


def messages(client: websocket.WebSocket) -> dict[int, bytes]:
    """Collect the data of each channel until the server closes."""
    found: dict[int, bytes] = {}
    while True:
        opcode, data = client.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return found
        number, payload = data[0], data[1:]
        if opcode == websocket.ABNF.OPCODE_TEXT:
            number, payload = number - ord("0"), base64.b64decode(payload)
        found[number] = found.get(number, b"") + payload


def exec_url(served: Served, container: str, *command: str) -> str:
    request = pb.ExecRequest(container_id=container, cmd=command, stdin=True, stdout=True, stderr=True)
    return served.cri.runtime.Exec(request).url


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
def test_exec_carries_input_output_and_exit_code(served: Served, container: str, protocol: str) -> None:
    with connected(exec_url(served, container, *EXIT_3), protocol) as client:
        if "base64" in protocol:
            client.send("0" + base64.b64encode(b"word\n").decode())
        else:
            client.send_binary(b"\x00word\n")
        found = messages(client)

    assert found[1] == b"got word\n"
    assert json.loads(found[3])["details"] == {"causes": [{"reason": "ExitCode", "message": "3"}]}


@pytest.mark.parametrize("protocol", ["channel.k8s.io", "base64.channel.k8s.io"])
def test_the_oldest_subprotocols_report_the_exit_code_as_text(served: Served, container: str, protocol: str) -> None:
    with connected(exec_url(served, container, "sh", "-c", "exit 3"), protocol) as client:
        found = messages(client)

    assert found[3].endswith(b"code: 3")


def test_v5_closes_the_input(served: Served, container: str) -> None:
    with connected(exec_url(served, container, "cat"), "v5.channel.k8s.io") as client:
        client.send_binary(b"\x00all of it")
        client.send_binary(b"\xff\x00")
        found = messages(client)

    assert found[1] == b"all of it"
    assert json.loads(found[3])["status"] == "Success"


def test_port_forward_over_channels_ends_with_its_pod(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    script = "while true; do echo hello | nc -l -p 8080; done"
    kubelet.started(pod, "sh", "-c", script)
    request = pb.PortForwardRequest(pod_sandbox_id=pod.id, port=[8080, 8081])
    found: dict[int, bytes] = {}

    def answered() -> bool:
        with connected(served.cri.runtime.PortForward(request).url, "v4.channel.k8s.io") as client:
            found.clear()
            found.update(messages(client))  # up to the Close frame, also while nothing listens on the port yet
        return found[0] != b"\x90\x1f"

    wait_until(answered)
    assert found[0] == b"\x90\x1fhello\n"
    assert found[3].startswith(b"\x91\x1f" + b"connect to port 8081")


def test_a_browsers_page_is_refused(served: Served, container: str) -> None:
    url = exec_url(served, container, "true").replace("http://", "ws://")

    with pytest.raises(websocket.WebSocketBadStatusException) as refusal:
        websocket.create_connection(url, subprotocols=["v4.channel.k8s.io"], origin="http://evil.example")
    assert refusal.value.status_code == 403


def test_a_url_works_only_once(served: Served, container: str) -> None:
    url = exec_url(served, container, "true")
    with connected(url, "v4.channel.k8s.io") as client:
        messages(client)

    with pytest.raises(websocket.WebSocketBadStatusException) as refusal, connected(url, "v4.channel.k8s.io"):
        pass
    assert refusal.value.status_code == 404


def test_nothing_listens_beyond_loopback(served: Served, container: str) -> None:
    where = urlsplit(exec_url(served, container, "true"))

    assert where.hostname == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("192.0.2.2", where.port or 0), timeout=SECONDS)
