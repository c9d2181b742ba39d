"""Sessions during which the server stops or Docker crashes."""

import subprocess
from collections.abc import Callable

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, unused_name
from integration.streaming.api_server import ApiServer
from integration.streaming.conftest import SECONDS, Kubectl
from integration.streaming.leftovers import Leftovers, processes
from integration.waiting import wait_until

DEATHS = 8


@pytest.fixture
def marker() -> str:
    """The argument of `sleep` in a test, which identifies the process."""
    return f"600.{int(unused_name('')[1:], 16)}"


@pytest.fixture
def new_pod(kubelet: Kubelet, api_server: ApiServer) -> Callable[[], None]:
    """Provide a maker of a pod that a test may lose; the API server calls it `lone`."""

    def make() -> None:
        pod = kubelet.pod()
        kubelet.started(pod)
        api_server.pods["lone"] = pod.id

    return make


def test_a_stopping_server_ends_its_sessions(
    kubectl: Kubectl, served: Served, new_pod: Callable[[], None], marker: str
) -> None:
    new_pod()
    client = kubectl.begin("exec", "-i", "lone", "--", "sh", "-c", f"echo ready; exec sleep {marker}")
    assert client.stdout is not None
    # Until Docker has answered the start, only the next server can kill the process.
    assert client.stdout.readline() == b"ready\n"

    served.server.stop()
    try:
        wait_until(lambda: not processes(marker))  # a killed process may take a moment on a busy node
        client.communicate(timeout=SECONDS)
    finally:
        served.restart()

    assert kubectl.run("exec", "lone", "--", "true").returncode == 0


@pytest.mark.parametrize("command", ["sleep {}", "yes {}"], ids=["silent", "in full flow"])
def test_a_session_goes_on_without_docker_until_its_container_ends(
    kubectl: Kubectl, kubelet: Kubelet, served: Served, new_pod: Callable[[], None], marker: str, command: str
) -> None:
    # After each crash the server has as much to read again, but it may keep a few more threads and connections than
    # the last time. A leak would exceed every earlier count each time.
    most = Leftovers(threads=0, descriptors=0)
    for _ in range(DEATHS):
        new_pod()
        client = kubectl.begin("exec", "-i", "lone", "--", *command.format(marker).split(), stdout=subprocess.DEVNULL)
        wait_until(lambda: processes(marker))
        served.engine.kill()
        try:
            assert processes(marker)
        finally:
            served.engine.start()  # without live-restore a starting Docker ends running containers
            served.wait_answers()
        client.communicate(timeout=SECONDS)
        assert client.returncode != 0
        wait_until(lambda: not processes(marker))
        kubelet.remove_all()
        after = Leftovers.of(served)
        if after <= most:
            return
        most = most.most(after)
    pytest.fail(f"each of {DEATHS} deaths left something behind")
