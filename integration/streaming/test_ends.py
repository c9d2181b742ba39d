"""Sessions whose server stops, or whose Docker dies, in the midst of them."""

from collections.abc import Iterator

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, unused_name
from integration.streaming.api_server import ApiServer
from integration.streaming.conftest import SECONDS, Kubectl
from integration.streaming.leftovers import Leftovers, processes
from integration.waiting import wait_until


@pytest.fixture
def marker() -> str:
    """What `sleep` sleeps in one test, by which its process is found."""
    return f"600.{int(unused_name('')[1:], 16)}"


@pytest.fixture(autouse=True)
def lone(kubelet: Kubelet, api_server: ApiServer) -> Iterator[None]:
    """A pod that one test may lose, known to the API server as `lone`."""
    pod = kubelet.pod()
    kubelet.started(pod)
    api_server.pods["lone"] = pod.id
    yield
    del api_server.pods["lone"]


def test_a_server_that_stops_ends_its_sessions(kubectl: Kubectl, served: Served, marker: str) -> None:
    client = kubectl.begin("exec", "-i", "lone", "--", "sleep", marker)
    wait_until(lambda: processes(marker))

    served.server.stop()
    try:
        assert not processes(marker)
        client.communicate(timeout=SECONDS)
    finally:
        served.restart()

    assert kubectl.run("exec", "lone", "--", "true").returncode == 0


@pytest.mark.parametrize("command", ["sleep {}", "yes {}"], ids=["silent", "in full flow"])
def test_docker_that_dies_fails_its_sessions(kubectl: Kubectl, served: Served, marker: str, command: str) -> None:
    kubectl.run("exec", "lone", "--", "true")
    before = Leftovers.of(served)
    client = kubectl.begin("exec", "-i", "lone", "--", *command.format(marker).split())
    wait_until(lambda: processes(marker))

    served.engine.kill()
    try:
        client.communicate(timeout=SECONDS)
        assert client.returncode != 0
    finally:
        served.engine.start()
        served.wait_answers()

    wait_until(lambda: not processes(marker))
    wait_until(lambda: Leftovers.of(served) <= before)
