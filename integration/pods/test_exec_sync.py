import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config
from integration.pods.faulty_node import FaultyNode
from integration.pods.kubelet import Kubelet, Pod, failure, pid_of, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

LIMIT = 16 << 20


@pytest.fixture(scope="module")
def container(served: Served, pod: Pod, images: Images) -> Iterator[str]:
    """A running container that the tests of this file share."""
    made = served.cri.create(pod.id, container_config("box", image=images.busybox), pod=pod.config)
    served.cri.start(made)
    yield made
    served.cri.remove_container(made)


def processes(marker: str) -> list[int]:
    """Return the pids of processes whose command line has the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended
    return found


def leads_its_group(pid: int) -> bool:
    """Return whether a process leads its process group, as a process started by Docker does."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def end(marker: str) -> None:
    """Kill processes whose command line has the marker."""
    for pid in processes(marker):
        os.kill(pid, signal.SIGKILL)


def test_output_and_exit_code_come_back(kubelet: Kubelet, container: str) -> None:
    answer = kubelet.cri.exec(container, "sh", "-c", "echo to out; echo to err >&2; exit 3")

    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"to out\n", b"to err\n", 3)


def test_output_is_bytes(kubelet: Kubelet, container: str) -> None:
    answer = kubelet.cri.exec(container, "printf", "\\377\\000\\n\\001")

    assert answer.stdout == b"\xff\x00\n\x01"


def test_standard_input_is_empty(kubelet: Kubelet, container: str) -> None:
    assert kubelet.cri.exec(container, "cat").exit_code == 0


# Engine 20.10 recognises a missing program only by the message of another runc.
@pytest.mark.parametrize(("command", "codes"), [("/no/such/program", {126, 127}), ("/etc/passwd", {126})])
def test_a_program_that_cannot_run_gives_the_exit_codes_of_a_shell(
    kubelet: Kubelet, container: str, command: str, codes: set[int]
) -> None:
    answer = kubelet.cri.exec(container, command)

    assert answer.exit_code in codes
    assert command.encode() in answer.stdout + answer.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_kept_up_to_16_mib_and_the_command_ends(kubelet: Kubelet, container: str, stream: str) -> None:
    script = f"head -c {LIMIT + 100_000} /dev/zero {'>&2' if stream == 'stderr' else ''}; exit 4"

    answer = kubelet.cri.exec(container, "sh", "-c", script)

    assert len(getattr(answer, stream)) == LIMIT
    assert answer.exit_code == 4


@pytest.mark.parametrize(
    "script",
    [
        "while :; do sleep 0.05; done",
        "trap '' TERM; while :; do sleep 0.05; done",
        "sleep 600.{0} & sleep 601.{0} & wait",
    ],
    ids=["a process", "a process that ignores signals", "with children that hold the output"],
)
def test_at_the_deadline_the_process_is_gone(kubelet: Kubelet, container: str, script: str) -> None:
    marker = str(int(unused_name("")[1:], 16))
    began = time.monotonic()

    with pytest.raises(grpc.RpcError) as over:
        kubelet.cri.exec(container, "sh", "-c", script.format(marker), f"own-{marker}", timeout=1)

    # Only the process is killed, not its children. A shell's child has the shell's command line until it executes
    # another program, and is killed until then.
    left = [pid for pid in processes(f"own-{marker}") if leads_its_group(pid)]
    assert failure(over)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 1 <= time.monotonic() - began < 60
    assert left == []
    wait_until(lambda: not processes(f"own-{marker}"))
    end(f".{marker}")


def test_the_exit_of_a_command_is_reported_although_its_children_hold_the_output(
    kubelet: Kubelet, container: str
) -> None:
    marker = str(int(unused_name("")[1:], 16))

    answer = kubelet.cri.exec(container, "sh", "-c", f"sleep 600.{marker} & echo done; exit 5", timeout=20)

    assert (answer.stdout, answer.exit_code) == (b"done\n", 5)
    end(f"600.{marker}")


def test_a_process_that_closes_its_output_is_killed_as_well(kubelet: Kubelet, container: str) -> None:
    marker = str(int(unused_name("")[1:], 16))

    with pytest.raises(grpc.RpcError) as over:
        kubelet.cri.exec(container, "sh", "-c", f"exec >&- 2>&-; exec sleep 600.{marker}", timeout=1)

    assert failure(over)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert processes(f"600.{marker}") == []


def test_an_exec_that_docker_cannot_start_is_answered_in_time_and_killed_later(
    served: Served, kubelet: Kubelet, pod: Pod
) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig())
    hanging = int(
        Path(f"/proc/{pid_of(served, container)}/stat").read_text().rpartition(")")[2].split()[1]
    )  # containerd's shim
    marker = str(int(unused_name("")[1:], 16))
    os.kill(hanging, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as over:
            kubelet.cri.exec(container, "sleep", f"600.{marker}", timeout=1)
        assert failure(over)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began < 60
    finally:
        os.kill(hanging, signal.SIGCONT)

    # Docker starts the next command after it.
    assert kubelet.cri.exec(container, "true").exit_code == 0
    wait_until(lambda: not processes(f"600.{marker}"))


def test_a_process_whose_client_has_gone_is_killed(kubelet: Kubelet, container: str) -> None:
    marker = str(int(unused_name("")[1:], 16))
    request = pb.ExecSyncRequest(container_id=container, cmd=["sleep", f"600.{marker}"])
    call = kubelet.cri.runtime.ExecSync.future(request)
    wait_until(lambda: processes(f"600.{marker}"))

    call.cancel()

    wait_until(lambda: not processes(f"600.{marker}"))


def test_an_exec_in_a_container_that_does_not_run_is_refused(kubelet: Kubelet, pod: Pod) -> None:
    created = kubelet.created(pod)

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.exec(created, "true")

    assert failure(refusal) == (grpc.StatusCode.FAILED_PRECONDITION, f"container {created} is not running")


def test_an_unknown_container_is_not_found(kubelet: Kubelet) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.exec("f" * 64, "true")

    assert failure(refusal)[0] == grpc.StatusCode.NOT_FOUND


def test_an_exec_ends_with_its_container(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig())
    marker = str(int(unused_name("")[1:], 16))
    answers: list[pb.ExecSyncResponse] = []
    client = threading.Thread(target=lambda: answers.append(kubelet.cri.exec(container, "sleep", f"600.{marker}")))
    client.start()
    wait_until(lambda: processes(f"600.{marker}"))

    kubelet.cri.stop_container(container)
    client.join(20)

    assert [answer.exit_code for answer in answers] == [137]


@pytest.mark.parametrize("how", ["killed", "drained"])
def test_a_server_kills_orphaned_execs_of_its_predecessor(faulty_node: FaultyNode, images: Images, how: str) -> None:
    kubelet = Kubelet(faulty_node.cri, images.busybox)
    container = kubelet.started(kubelet.pod())
    marker = str(int(unused_name("")[1:], 16))
    by_hand = faulty_node.served.engine.api.exec_create(container, ["sleep", f"601.{marker}"])["Id"]
    faulty_node.served.engine.api.exec_start(by_hand, detach=True)
    request = pb.ExecSyncRequest(container_id=container, cmd=["sleep", f"600.{marker}"])
    call = faulty_node.cri.runtime.ExecSync.future(request)
    wait_until(lambda: processes(f"600.{marker}") and processes(f"601.{marker}"))

    if how == "killed":
        faulty_node.served.server.kill()
        faulty_node.served.server.socket.unlink()  # a start waits for its appearance
    else:  # while this server cannot kill it
        with faulty_node.proxy.refused("GET /exec/.*/json", every=True):
            faulty_node.served.server.stop()
    assert call.exception()
    assert processes(f"600.{marker}")
    faulty_node.served.restart()

    wait_until(lambda: not processes(f"600.{marker}"))
    assert processes(f"601.{marker}")
    end(f"601.{marker}")
    kubelet.remove_all()
