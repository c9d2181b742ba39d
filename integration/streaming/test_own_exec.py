"""The server's own exec makes the same process as Docker's; Docker runs the execs that it cannot."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, in_context, secured, unused_name
from integration.pods.user_namespaces import features, own_users
from integration.streaming.leftovers import processes
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.engine.client import DockerEngine

FACTS = """
exec 2>&1
cat /proc/self/status | grep -vE '^(Pid|PPid|Tgid|Ngid|NS|Vm|Rss|FDSize|SigQ|Name|State|.*ctxt)'
cat /proc/self/limits /proc/self/cgroup /proc/self/oom_score_adj /proc/self/attr/current /proc/self/sessionid
for each in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$each; done
pwd; env | grep -v '^_='; id; readlink /proc/self/fd/0; ls -l /proc/self/fd | sed 's/.*-> //; s/[0-9]//g'
"""
"""Prints the attributes of a process, without those that differ between any two processes."""


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    before = served.snapshot()
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
    assert served.snapshot() == before


def by_docker(served: Served, container_id: str, *cmd: str) -> tuple[bytes, int]:
    """Run a command as `docker exec` does; return its output and exit code.

    With the server's client: the client of Docker's library loses early bytes.
    """
    body = {"Cmd": list(cmd), "AttachStdout": True, "AttachStderr": True}
    with closing(DockerEngine(served.engine.url, request_timeout=60)) as engine:
        made = engine.create_exec(container_id, body=body)
        with engine.start_exec(made) as stream:
            output = b"".join(piece for _, piece in stream.frames())
        wait_until(lambda: not engine.inspect_exec(made).running)
        code = engine.inspect_exec(made).exit_code
    assert code is not None
    return output, code


def seconds_of_sleep() -> str:
    """Return the argument of `sleep` in a test, which identifies the process."""
    return f"600.{int(unused_name('')[1:], 16)}"


def left_to_docker(served: Served) -> dict[str, Any]:
    """Return the numbers of execs that Docker ran, by reason."""
    answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
    state = json.loads(answer.info["config"])["ownExec"]
    return dict(state["leftToDocker"])


CONTEXTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a user by number": {"run_as_user": pb.Int64Value(value=1234)},
    "a user and groups": {
        "run_as_user": pb.Int64Value(value=1234),
        "run_as_group": pb.Int64Value(value=77),
        "supplemental_groups": [5, 6],
    },
    "no capabilities": {"capabilities": pb.Capability(drop_capabilities=["ALL"])},
    "more capabilities": {"capabilities": pb.Capability(add_capabilities=["NET_ADMIN", "SYS_PTRACE"])},
    "no new privileges": {"no_new_privs": True},
    "the default filter": {"seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)},
    "the default filter for a user": {
        "seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault),
        "no_new_privs": True,
        "run_as_user": pb.Int64Value(value=1234),
    },
    "a read-only root": {"readonly_rootfs": True},
    "privileged": {"privileged": True},
    "processes of the pod": {"namespace_options": pb.NamespaceOption(pid=pb.POD)},
    "the network of the node": {"namespace_options": pb.NamespaceOption(pid=pb.CONTAINER, network=pb.NODE)},
    "processes of the node": {"namespace_options": pb.NamespaceOption(pid=pb.NODE)},
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_process_has_the_attributes_of_dockers(served: Served, kubelet: Kubelet, context: str) -> None:
    fields = CONTEXTS[context]
    options = fields.get("namespace_options", pb.NamespaceOption(pid=pb.CONTAINER))
    if context == "privileged" and served.engine.name == "20.10":
        pytest.skip("privileged containers fail here on Docker 20.10")
    pod = kubelet.pod(**in_context(namespace_options=options, privileged=bool(fields.get("privileged"))))
    container = kubelet.started(pod, **secured(**({"namespace_options": options} | fields)))
    before = left_to_docker(served)
    own = served.cri.exec(container, "sh", "-c", FACTS).stdout.decode()
    assert left_to_docker(served) == before
    assert own.split("\n") == by_docker(served, container, "sh", "-c", FACTS)[0].decode().split("\n")


def test_a_process_in_a_user_namespace_has_the_attributes_of_dockers(served: Served, kubelet: Kubelet) -> None:
    wait_until(lambda: features(served.cri).user_namespaces, seconds=10)
    options = own_users()
    pod = kubelet.pod(**in_context(namespace_options=options))
    for user in (0, 1000):
        container = kubelet.started(pod, **secured(namespace_options=options, run_as_user=pb.Int64Value(value=user)))
        before = left_to_docker(served)
        own = served.cri.exec(container, "sh", "-c", FACTS + "echo again > /dev/stdout").stdout.decode()
        assert left_to_docker(served) == before
        by_hand, _ = by_docker(served, container, "sh", "-c", FACTS + "echo again > /dev/stdout")
        assert own.split("\n") == by_hand.decode().split("\n")


def test_apparmor_confines_a_command(served: Served, kubelet: Kubelet) -> None:
    if not any("apparmor" in option for option in served.engine.api.info()["SecurityOptions"]):
        pytest.skip("the kernel has no AppArmor, or Docker does not find it")
    container = kubelet.started(kubelet.pod())
    before = left_to_docker(served)
    assert served.cri.exec(container, "cat", "/proc/self/attr/current").stdout == b"docker-default (enforce)\n"
    assert left_to_docker(served) == before


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program", "/etc", "/etc/passwd"])
def test_a_command_that_cannot_start_fails_as_with_docker(served: Served, kubelet: Kubelet, command: str) -> None:
    container = kubelet.started(kubelet.pod())
    done = served.cri.exec(container, command)
    assert (done.stdout + done.stderr, done.exit_code) == by_docker(served, container, command)
    assert "join" in left_to_docker(served)


@pytest.mark.parametrize("code", [0, 1, 126, 127, 128, 255])
def test_the_exit_code_is_the_commands(served: Served, kubelet: Kubelet, code: int) -> None:
    container = kubelet.started(kubelet.pod())
    assert served.cri.exec(container, "sh", "-c", f"exit {code}").exit_code == code


@pytest.mark.parametrize("number", [1, 6, 9, 15])
def test_a_process_killed_by_a_signal_has_exit_code_128_plus_signal(
    served: Served, kubelet: Kubelet, number: int
) -> None:
    container = kubelet.started(kubelet.pod())
    assert served.cri.exec(container, "sh", "-c", f"kill -{number} $$").exit_code == 128 + number


def test_an_exec_in_a_paused_container_is_left_to_docker(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    served.engine.api.pause(container)
    try:
        with pytest.raises(grpc.RpcError, match="paused"):
            served.cri.exec(container, "true")
    finally:
        served.engine.api.unpause(container)
    assert served.cri.exec(container, "true").exit_code == 0


def test_docker_knows_nothing_of_the_servers_own_exec(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    marker = seconds_of_sleep()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(served.cri.exec, container, "sleep", marker, timeout=60)
        try:
            wait_until(lambda: processes(marker))
            assert not served.engine.api.inspect_container(container)["ExecIDs"]
            assert any(marker in " ".join(row) for row in served.engine.api.top(container)["Processes"])
        finally:
            for pid in processes(marker):
                os.kill(pid, signal.SIGKILL)
        assert running.result().exit_code == 137


def test_a_timeout_kills_the_process_and_its_children(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    marker = seconds_of_sleep()
    with pytest.raises(grpc.RpcError) as failure:
        served.cri.exec(container, "sh", "-c", f"sleep {marker} & sleep {marker}", timeout=1)
    assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: not processes(marker))


def test_an_exec_ends_with_a_killed_server(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    marker = seconds_of_sleep()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(served.cri.exec, container, "sleep", marker, timeout=60)
        wait_until(lambda: processes(marker))
        served.server.kill()
        try:
            wait_until(lambda: not processes(marker))
            assert isinstance(running.exception(), grpc.RpcError)
        finally:
            served.revive()


def test_an_exec_program_that_dies_is_replaced(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.started(kubelet.pod())
    wait_until(lambda: runs_own(served, container))  # a test before may just have restarted the server
    marker = seconds_of_sleep()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(served.cri.exec, container, "sleep", marker, timeout=60)
        wait_until(lambda: processes(marker))
        os.kill(exec_program(served), signal.SIGKILL)
        with pytest.raises(grpc.RpcError, match="the exec program has ended"):
            running.result()
    wait_until(lambda: not processes(marker))
    before = left_to_docker(served)
    assert served.cri.exec(container, "true").exit_code == 0
    assert left_to_docker(served) == before


def runs_own(served: Served, container: str) -> bool:
    """Run a command; return whether the server's own exec ran it."""
    before = left_to_docker(served)
    served.cri.exec(container, "true")
    return left_to_docker(served) == before


def exec_program(served: Served) -> int:
    """Return the pid of the server's exec program."""
    return next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(served.server.daemon.pid)
        and b"own_exec" in (path.parent / "cmdline").read_bytes()
    )
