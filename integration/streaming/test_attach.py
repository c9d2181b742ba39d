from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from integration.conftest import Images, Served
from integration.cri import container_config
from integration.pods.kubelet import Kubelet, Pod
from integration.streaming.conftest import SECONDS, Kubectl
from integration.streaming.leftovers import Leftovers
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


@pytest.fixture
def solo(kubelet: Kubelet, kubectl: Kubectl) -> Iterator[Pod]:
    """A pod for a single test, which the API server calls `solo`."""
    pod = kubelet.pod()
    kubectl.server.pods["solo"] = pod.id
    yield pod
    del kubectl.server.pods["solo"]


def test_input_reaches_the_process_and_its_end_closes_stdin(kubelet: Kubelet, kubectl: Kubectl, solo: Pod) -> None:
    container = kubelet.started(solo, "cat", stdin=True, stdin_once=True)

    done = kubectl.run("attach", "-i", "solo", stdin=b"typed\n")

    assert (done.returncode, b"typed\n" in done.stdout) == (0, True), done.stderr
    wait_until(lambda: kubelet.cri.container_status(container).state == pb.CONTAINER_EXITED)


def test_stdin_stays_open_for_a_later_client_without_stdin_once(kubelet: Kubelet, kubectl: Kubectl, solo: Pod) -> None:
    container = kubelet.started(solo, "sh", "-c", "while read line; do echo got $line; done", stdin=True)
    for word in (b"first", b"second"):
        client = kubectl.begin("attach", "-i", "solo")
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(word + b"\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"got " + word + b"\n"
        client.kill()
        client.communicate()

    assert kubelet.cri.container_status(container).state == pb.CONTAINER_RUNNING


def test_several_clients_see_the_same_output_from_their_attachment_on(
    kubelet: Kubelet, kubectl: Kubectl, solo: Pod
) -> None:
    script = "echo early; while read word; do echo $word; echo bad >&2; done; sleep 3600"
    container = kubelet.started(solo, "sh", "-c", script, stdin=True)
    clients = [kubectl.begin("attach", "solo") for _ in range(3)]
    typist = kubectl.begin("attach", "-i", "solo")
    assert typist.stdin is not None
    # Only output shows that a client is attached.
    with ThreadPoolExecutor(3) as pool:
        shown = [pool.submit(client.stdout.readline) for client in clients if client.stdout]
        while not all(line.done() for line in shown):
            typist.stdin.write(b"late\n")
            wait(shown, timeout=0.2)
    assert [line.result() for line in shown] == [b"late\n"] * 3

    kubelet.cri.stop_container(container)

    for client in [*clients, typist]:
        out, err = client.communicate(timeout=SECONDS)
        assert b"early" not in out
        assert b"bad\n" in err


def test_a_containers_terminal_is_attached(kubelet: Kubelet, kubectl: Kubectl, solo: Pod) -> None:
    labels = {"io.kubernetes.container.name": "c", "tty": "true"}
    kubelet.started(solo, "sh", "-c", "read line; echo typed $line; sleep 3600", stdin=True, tty=True, labels=labels)
    client = kubectl.begin("attach", "-i", "solo")
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"x\n")
    client.stdin.flush()
    shown = b""
    while b"typed x\r\n" not in shown:
        shown += client.stdout.read(1)
    client.kill()
    client.communicate()


def test_a_killed_client_leaves_only_the_container(
    kubelet: Kubelet, kubectl: Kubectl, solo: Pod, served: Served
) -> None:
    container = kubelet.started(solo, "sh", "-c", "while echo tick; do sleep 0.1; done", stdin=True)
    before = Leftovers.of(served)
    client = kubectl.begin("attach", "-i", "solo")
    assert client.stdout is not None
    assert client.stdout.readline() == b"tick\n"

    client.kill()
    client.communicate()

    wait_until(lambda: Leftovers.of(served) <= before)
    assert kubelet.cri.container_status(container).state == pb.CONTAINER_RUNNING


def test_a_container_that_does_not_run_cannot_be_attached(served: Served, images: Images, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = served.cri.create(pod.id, container_config("idle", image=images.busybox), pod=pod.config)

    with pytest.raises(Exception, match="is not running"):
        served.cri.runtime.Attach(pb.AttachRequest(container_id=container, stdout=True))
    served.cri.remove_container(container)
