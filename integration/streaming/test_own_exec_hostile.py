"""Containers that attack the server's own exec."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, secured
from integration.streaming.test_own_exec import exec_program, left_to_docker
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SYS_PTRACE = pb.Capability(add_capabilities=["SYS_PTRACE"])


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    before = served.snapshot()
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
    assert served.snapshot() == before


def test_no_standard_stream_is_a_file_of_the_hosts_dev(served: Served, kubelet: Kubelet) -> None:
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
    is_stopped = False
    for _ in range(30):
        try:
            served.cri.exec(container, "true", timeout=1)
        except grpc.RpcError:
            is_stopped = True
            break
    assert is_stopped
    wait_until(lambda: not children(exec_program(served)))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_container_cannot_write_to_the_exec_programs_file(served: Served, kubelet: Kubelet) -> None:
    python = Path(sys.executable).resolve()
    before = python.stat().st_mtime_ns
    write = "(echo wrote >> $each) 2> /dev/null && echo $each >> /wrote"
    attack = f"while :; do for each in /proc/[0-9]*/exe; do {write}; done; done"
    container = kubelet.started(kubelet.pod(), "sh", "-c", attack, **secured(capabilities=SYS_PTRACE))
    script = "printf '#!/proc/self/exe\n' > /script; chmod +x /script; ln -s /proc/self/exe /link"
    assert served.cri.exec(container, "sh", "-c", script).exit_code == 0
    for command in (["/script"], ["/link", "-c", "import time; time.sleep(1)"], ["/proc/self/exe", "--version"]):
        for _ in range(20):
            served.cri.exec(container, *command)
    assert kubelet.inside(container, "cat /wrote 2> /dev/null") == ""
    assert python.stat().st_mtime_ns == before


@pytest.mark.parametrize("directory", ["/proc/self/fd/3", "/proc/self/fd/7", "/proc/1/root/../../.."])
def test_a_working_directory_is_never_outside_of_the_container(
    served: Served, kubelet: Kubelet, directory: str
) -> None:
    container = kubelet.created(kubelet.pod(), "sleep", "600", working_dir=directory)
    try:
        served.cri.start(container)
    except grpc.RpcError:
        return  # runc refuses the directory
    done = served.cri.exec(container, "sh", "-c", "pwd; cat /proc/self/cwd/etc/hostname; ls -di /proc/self/cwd/ /")
    assert Path("/etc/hostname").read_text() not in done.stdout.decode()


@pytest.mark.parametrize(
    "script",
    [
        "rm /etc/passwd; mkfifo /etc/passwd",
        "rm /etc/passwd; ln -s /dev/zero /etc/passwd",
        "rm /dev/null; mkfifo /dev/null",
        "rm /dev/null; ln -s /proc/kmsg /dev/null",
        "mkdir -p /usr/lib/python3.11 /lib64; echo 'raise SystemExit(99)' > /usr/lib/python3.11/os.py",
    ],
    ids=["FIFO", "device", "null is a FIFO", "null is a link", "python"],
)
def test_hostile_files_of_an_image_do_not_block_an_exec(served: Served, kubelet: Kubelet, script: str) -> None:
    container = kubelet.started(kubelet.pod())
    assert served.cri.exec(container, "sh", "-c", script).exit_code == 0
    assert served.cri.exec(container, "sh", "-c", "echo right", timeout=5).stdout == b"right\n"
    assert not children(exec_program(served))


def test_an_exec_with_a_home_that_execve_rejects_fails(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    script = "printf 'root:x:0:0:root:/a\\0b:/bin/sh\\n' > /etc/passwd"
    assert served.cri.exec(container, "sh", "-c", script).exit_code == 0
    try:
        done = served.cri.exec(container, "echo", "right")
        outcome = f"exit code {done.exit_code} and {done.stdout!r}"
    except grpc.RpcError as error:
        outcome = str(error.details())
    # runc 1.3 executes the command, which fails.
    assert "Docker could not start the command" in outcome or outcome == "exit code 255 and b''"


def test_an_exec_is_left_to_docker_if_the_first_process_made_a_user_namespace(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod(), "unshare", "-U", "sleep", "600")
    wait_until(lambda: "namespace" in left_to_docker(served) or not served.cri.exec(container, "true").exit_code)
    served.cri.exec(container, "true")
    assert "namespace" in left_to_docker(served)


def test_a_container_stops_although_its_execs_hang(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    # The command's child outlives it, and holds its output open.
    assert served.cri.exec(container, "sh", "-c", "(trap '' TERM HUP; sleep 600) & kill -STOP $!").exit_code == 0
    began = time.monotonic()
    served.cri.stop_container(container)
    assert time.monotonic() - began < 5
    assert not children(exec_program(served))
