"""Terminals, attachments and forwarded ports of pods in user namespaces."""

import os
from collections.abc import Iterator

import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, Pod
from integration.pods.user_namespaces import FIRST, IMAGE_USER, kubelet_of, pod_of, started
from integration.streaming.conftest import Kubectl
from integration.streaming.test_exec import terminal
from integration.streaming.test_portforward import forwarded, get
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NAME = "mapped"


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    with kubelet_of(served, images.busybox) as made:
        yield made


@pytest.fixture
def pod(kubelet: Kubelet, kubectl: Kubectl) -> Iterator[Pod]:
    """A pod in a user namespace, which the API server calls NAME."""
    made = pod_of(kubelet)
    kubectl.server.pods[NAME] = made.id
    yield made
    del kubectl.server.pods[NAME]


@pytest.mark.parametrize("user", [0, IMAGE_USER])
def test_a_terminal_belongs_to_the_user_of_the_container(
    kubelet: Kubelet, kubectl: Kubectl, pod: Pod, user: int
) -> None:
    started(kubelet, pod, context={"run_as_user": pb.Int64Value(value=user)})

    with terminal(kubectl, "sh", pod=NAME) as typist:
        typist.type(b"stty size; stat -L -c 'owner %u' /proc/self/fd/0; echo opened >/dev/tty\n")
        typist.wait_shown(b"30 100\r\n")
        typist.wait_shown(f"owner {user}\r\n".encode())
        typist.wait_shown(b"\r\nopened\r\n")
        typist.resize(width=123, height=45)
        typist.type(b"until stty size | grep '45 123'; do sleep 0.1; done; exit 7\n")
        assert typist.process.wait(30) == 7


def test_input_reaches_the_process_and_its_end_closes_stdin(kubelet: Kubelet, kubectl: Kubectl, pod: Pod) -> None:
    container = started(kubelet, pod, "cat", stdin=True, stdin_once=True)

    done = kubectl.run("attach", "-i", NAME, stdin=b"typed\n")

    assert (done.returncode, b"typed\n" in done.stdout) == (0, True), done.stderr
    wait_until(lambda: kubelet.cri.container_status(container).state == pb.CONTAINER_EXITED)


def test_a_containers_terminal_is_attached(kubelet: Kubelet, kubectl: Kubectl, pod: Pod) -> None:
    labels = {"io.kubernetes.container.name": "c", "tty": "true"}
    script = "read line; echo typed $line; stat -L -c 'owner %u' /proc/self/fd/0; echo x >/dev/tty; sleep 3600"
    started(kubelet, pod, "sh", "-c", script, stdin=True, tty=True, labels=labels)

    client = kubectl.begin("attach", "-i", NAME)
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"x\n")
    shown = b""
    while b"\nx\r\n" not in shown:
        shown += (piece := client.stdout.read(1))
        assert piece, shown
    client.kill()
    client.communicate()

    assert b"typed x\r\nowner 0\r\n" in shown


def test_standard_input_of_an_exec_is_a_pipe_that_the_user_can_open(
    kubelet: Kubelet, kubectl: Kubectl, pod: Pod
) -> None:
    started(kubelet, pod)

    done = kubectl.run("exec", "-i", NAME, "--", "sh", "-c", "cat /dev/stdin >/dev/stdout; exit 3", stdin=b"piped")

    assert (done.returncode, done.stdout) == (3, b"piped"), done.stderr


def test_ports_of_a_pod_in_a_user_namespace_are_forwarded(
    served: Served, kubelet: Kubelet, kubectl: Kubectl, pod: Pod
) -> None:
    script = "mkdir /www; cat /proc/self/uid_map > /www/index.html; httpd -f -p 127.0.0.1:80 -h /www"
    container = started(kubelet, pod, "sh", "-c", script)
    asked = ("sh", "-c", "nc -w 5 127.0.0.1 80 </dev/null")
    wait_until(lambda: not served.cri.exec(container, *asked).exit_code)

    with forwarded(kubectl, 80, pod=NAME) as local:
        assert get(local[80]).split()[1] == os.fsencode(str(FIRST))
