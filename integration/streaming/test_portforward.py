import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest

from integration.conftest import Images, Served
from integration.cri import HOST_NETWORK
from integration.pods.kubelet import Kubelet, Pod, unused_name
from integration.streaming.api_server import ApiServer
from integration.streaming.conftest import SECONDS, Kubectl
from integration.streaming.leftovers import Leftovers
from integration.waiting import exit_code, wait_until
from shim.domain.labels import CONTAINER_NAME, TYPE, TYPE_SANDBOX

MIB = 1 << 20
BIG = 100 * MIB
HTTPD, V6, ECHO, CLOSED, BANNER = 8080, 8081, 8082, 8083, 8084

SERVERS = f"""
mkdir -p /tmp/www && echo hello > /tmp/www/index.html && head -c {BIG} /dev/zero > /tmp/www/big
httpd -p 127.0.0.1:{HTTPD} -h /tmp/www
httpd -p [::1]:{V6} -h /tmp/www
nc -ll -p {BANNER} -e echo banner &
exec nc -ll -p {ECHO} -e cat
"""


@pytest.fixture(scope="module")
def web(served: Served, images: Images, api_server: ApiServer) -> Iterator[Pod]:
    """A pod with real servers, which the API server calls `web`."""
    made = Kubelet(served.cri, images.busybox)
    pod = made.pod()
    container = made.started(pod, "sh", "-c", SERVERS)
    api_server.pods["web"] = pod.id
    answers = ["sh", "-c", f"nc -w 5 127.0.0.1 {ECHO} </dev/null"]
    wait_until(lambda: not served.cri.exec(container, *answers).exit_code)
    yield pod
    made.remove_all()


pytestmark = pytest.mark.usefixtures("web")


@contextmanager
def forwarded(kubectl: Kubectl, *ports: int, pod: str = "web") -> Iterator[dict[int, int]]:
    """Forward ports of a pod; yields the local port of each."""
    with kubectl.begin("port-forward", f"pod/{pod}", *(f":{port}" for port in ports)) as client:
        assert client.stdout is not None
        local: dict[int, int] = {}
        try:
            while len(local) < len(ports):
                line = client.stdout.readline().decode()
                assert line, client.stderr.read() if client.stderr else ""
                if found := re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)\n", line):
                    local[int(found[2])] = int(found[1])
            yield local
        finally:
            client.kill()


def get(port: int, path: str = "/index.html") -> bytes:
    """Fetch from a local port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", path)
    try:
        return connection.getresponse().read()
    finally:
        connection.close()


def test_50_concurrent_requests_are_answered(kubectl: Kubectl) -> None:
    with forwarded(kubectl, HTTPD) as local, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: get(local[HTTPD]), range(50)))

    assert answers == [b"hello\n"] * 50


def test_100_mib_arrive_over_a_connection(kubectl: Kubectl) -> None:
    with forwarded(kubectl, HTTPD) as local:
        assert hashlib.md5(get(local[HTTPD], "/big")).digest() == hashlib.md5(bytes(BIG)).digest()


def test_a_server_that_listens_on_ipv6_only_is_reached(kubectl: Kubectl) -> None:
    with forwarded(kubectl, V6) as local:
        assert get(local[V6]) == b"hello\n"


def test_a_half_closed_connection_receives_the_answer(kubectl: Kubectl) -> None:
    data = bytes(range(256)) * 16 * 1024
    with forwarded(kubectl, ECHO) as local, socket.create_connection(("127.0.0.1", local[ECHO])) as connection:
        connection.settimeout(SECONDS)

        def send() -> None:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        got = bytearray()
        while piece := connection.recv(1 << 16):
            got += piece
        sender.join()

    assert bytes(got) == data


def test_everything_that_a_closing_server_sent_arrives(kubectl: Kubectl) -> None:
    with forwarded(kubectl, BANNER) as local, socket.create_connection(("127.0.0.1", local[BANNER])) as connection:
        connection.settimeout(SECONDS)

        assert connection.makefile("rb").read() == b"banner\n"


def test_a_closed_port_does_not_affect_other_ports(kubectl: Kubectl) -> None:
    with forwarded(kubectl, HTTPD) as local, forwarded(kubectl, CLOSED) as closed:
        with socket.create_connection(("127.0.0.1", closed[CLOSED])) as connection:
            connection.settimeout(SECONDS)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert get(local[HTTPD]) == b"hello\n"


def test_ports_of_a_host_network_pod_are_forwarded(kubectl: Kubectl, kubelet: Kubelet) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    kubectl.server.pods["host"] = pod.id
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"from the host")

        threading.Thread(target=answer, daemon=True).start()
        with (
            forwarded(kubectl, port, pod="host") as local,
            socket.create_connection(("127.0.0.1", local[port])) as connection,
        ):
            connection.settimeout(SECONDS)
            assert connection.recv(100) == b"from the host"


def test_a_killed_client_leaves_nothing(kubectl: Kubectl, served: Served) -> None:
    before = Leftovers.of(served)
    with forwarded(kubectl, HTTPD, ECHO) as local:
        held = [socket.create_connection(("127.0.0.1", local[ECHO])) for _ in range(5)]
        for connection in held:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    for connection in held:
        connection.close()

    wait_until(lambda: Leftovers.of(served) <= before)


@pytest.fixture
def old_pod(served: Served, images: Images, api_server: ApiServer) -> Iterator[str]:
    """A running pod of cri-dockerd, with a server in it. Its network namespace is not pinned."""
    api = served.engine.api
    name = unused_name("old")
    tags = {TYPE: TYPE_SANDBOX, CONTAINER_NAME: "POD"}
    sandbox = api.create_container(images.pause, name=f"k8s_POD_{name}_default_uid_0", labels=tags)["Id"]
    api.start(sandbox)
    host = api.create_host_config(network_mode=f"container:{sandbox}")
    server = api.create_container(images.busybox, ["sh", "-c", SERVERS], host_config=host)["Id"]
    api.start(server)
    api_server.pods["old"] = sandbox
    wait_until(lambda: served.cri.sandboxes(id=sandbox))
    # kubectl exits at the first refused connection.
    wait_until(lambda: not exit_code(served.engine.api, server, ["sh", "-c", f"nc -w 5 127.0.0.1 {ECHO} </dev/null"]))
    yield sandbox
    api.remove_container(server, force=True)
    served.cri.stop(sandbox)
    served.cri.remove(sandbox)


@pytest.mark.usefixtures("old_pod")
def test_ports_of_a_pod_of_cri_dockerd_are_forwarded(kubectl: Kubectl) -> None:
    with forwarded(kubectl, HTTPD, pod="old") as local:
        assert get(local[HTTPD]) == b"hello\n"
