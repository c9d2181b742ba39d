"""What a container does to the server's own exec of a command in it."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet
from integration.streaming.test_own_exec import exec_program, left_to_docker
from integration.waiting import wait_until


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    before = served.snapshot()
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
    assert served.snapshot() == before


def test_no_file_of_the_hosts_dev_is_a_stream(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    before = left_to_docker(served)
    script = "stat -L -c %d:%i /proc/self/fd/0 /dev/null; readlink /proc/self/fd/0"
    done = served.cri.exec(container, "sh", "-c", script)
    assert left_to_docker(served) == before
    own, inside, name = done.stdout.decode().split()
    host = Path("/dev/null").stat()
    assert own == inside
    assert own != f"{host.st_dev}:{host.st_ino}"
    assert name == "/dev/null"


def test_processes_that_a_container_stops_are_killed_with_their_exec(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod(), "sh", "-c", "while :; do kill -STOP -1; done")
    for _ in range(5):
        with pytest.raises(grpc.RpcError):
            served.cri.exec(container, "true", timeout=1)
    wait_until(lambda: not children(exec_program(served)))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
