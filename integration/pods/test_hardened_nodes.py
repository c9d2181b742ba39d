"""Nodes that someone has hardened, or whose disk is full."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

import shim.oci_runtime
from integration.conftest import Images, NodeDirs, Served, serving
from integration.networks import bridge, conflist
from integration.node.commands import run
from integration.node.engine import Engine, own_link
from integration.pods.kubelet import Kubelet, failure
from integration.pods.test_doctor import doctor
from integration.pods.user_namespaces import features
from integration.server import PROGRAM
from integration.sessions import exec_session
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.oci_runtime.command import SELF_TEST

LINK = "hardened0"
MOUNT_SECONDS = 30

Started = Callable[..., Served]
"""`start(*program, **directories)` starts a server behind a program; `directories` are fields of NodeDirs."""


@pytest.fixture
def start(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[Started]:  # noqa: ARG001 - images must be there
    (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(node_dirs.cni_leases, link=LINK)))
    with ExitStack() as stack:
        stack.enter_context(own_link(LINK))

        def start(*program: str, **directories: Path) -> Served:
            command = (*program, *PROGRAM) if program else None
            return stack.enter_context(serving(engine, replace(node_dirs, **directories), command))

        yield start


@contextmanager
def tmpfs(path: Path, options: str) -> Iterator[Path]:
    """Mount a file system for the block."""
    path.mkdir(exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], timeout=MOUNT_SECONDS)
    try:
        yield path
    finally:
        run(["umount", "--lazy", path], timeout=MOUNT_SECONDS)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb") as file:
        while True:
            try:
                file.write(bytes(1 << 16))
                file.flush()
            except OSError:
                break


def use_all_inodes(directory: Path) -> None:
    directory.mkdir()
    for number in range(100_000):
        try:
            (directory / str(number)).touch()
        except OSError:
            return


def in_mounts(commands: str) -> Sequence[str]:
    """Return a command that runs the following command in a mount namespace that shell commands have changed."""
    return ("unshare", "--mount", "sh", "-ec", f'{commands}; exec "$@"', "sh")


def assert_pods_work(served: Served, images: Images) -> None:
    """Run a pod with a log and a command in it, and remove it."""
    before = served.snapshot()
    kubelet = Kubelet(served.cri, images.busybox)
    pod = kubelet.pod(log_directory=str(served.dirs.logs))
    container = kubelet.started(pod, "sh", "-c", "echo begun; sleep 3600", log_path="c.log")
    assert kubelet.inside(container, "echo works") == "works\n"
    wait_until(lambda: "begun" in (served.dirs.logs / "c.log").read_text())
    kubelet.remove_all()
    assert served.snapshot() == before


@pytest.mark.parametrize(
    "commands",
    [
        "mount -t proc -o hidepid=2 proc /proc",
        "mount -o bind /etc /etc; mount -o remount,ro,bind /etc",
        "mount -o rbind /tmp /tmp; mount -o remount,noexec,nosuid,nodev,bind /tmp",
    ],
    ids=["hidepid=2", "read-only /etc", "noexec on /tmp"],
)
def test_pods_work_on_a_node_that_hides_or_forbids(start: Started, images: Images, commands: str) -> None:
    assert_pods_work(start(*in_mounts(commands)), images)


def test_the_servers_own_exec_works_from_a_noexec_root_directory(
    start: Started, images: Images, node_dirs: NodeDirs
) -> None:
    with tmpfs(node_dirs.state, "noexec,nosuid,nodev"):
        served = start()
        assert_pods_work(served, images)
        served.clear()


def test_a_server_with_1024_open_files_serves_fifty_sessions(start: Started, images: Images) -> None:
    served = start("prlimit", "--nofile=1024:1024")
    kubelet = Kubelet(served.cri, images.busybox)
    pod = kubelet.pod()
    containers = [kubelet.started(pod) for _ in range(2)]
    with ExitStack() as sessions:
        for number in range(50):
            session = exec_session(served.cri, containers[number % 2], "sleep", "600")
            sessions.callback(session.close)
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: kubelet.inside(containers[0], "echo works"), range(50))) == {"works\n"}
    kubelet.remove_all()


@pytest.mark.parametrize("what", ["disk", "inodes"])
def test_a_full_disk_fails_new_pods_by_name_and_lets_old_pods_go(
    start: Started, images: Images, node_dirs: NodeDirs, what: str
) -> None:
    """A kubelet that evicts pods must be able to."""
    with tmpfs(node_dirs.state, "size=4m,nr_inodes=2000"):
        served = start()
        kubelet = Kubelet(served.cri, images.busybox)
        before = served.snapshot()
        pod = kubelet.pod()
        container = kubelet.started(pod)
        full = node_dirs.state / "full"
        (fill if what == "disk" else use_all_inodes)(full)

        with pytest.raises(grpc.RpcError) as failed:
            kubelet.pod()
        code, text = failure(failed)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "no space left on device" in text
        assert str(node_dirs.state) in text
        assert kubelet.inside(container, "echo works") == "works\n"
        kubelet.remove_all()

        served.server.kill()
        served.restart()
        assert served.cri.sandboxes() == []
        run(["rm", "-rf", full], timeout=MOUNT_SECONDS)
        assert_pods_work(served, images)
        assert served.snapshot() == before
        served.clear()


def test_a_log_goes_on_once_its_disk_has_room(start: Started, images: Images, node_dirs: NodeDirs) -> None:
    with tmpfs(node_dirs.logs, "size=1m"):
        served = start()
        kubelet = Kubelet(served.cri, images.busybox)
        pod = kubelet.pod(log_directory=str(node_dirs.logs))
        full = node_dirs.logs / "full"
        fill(full)
        script = "for i in $(seq 100); do echo line $i; done; sleep 3600"
        kubelet.started(pod, "sh", "-c", script, log_path="c.log")
        full.unlink()

        log = node_dirs.logs / "c.log"
        wait_until(lambda: log.exists() and "line 100" in log.read_text())
        lines = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
        assert lines == [f"line {number}" for number in range(1, 101)]
        kubelet.remove_all()


def test_a_kernel_without_user_namespaces_is_named(tmp_path: Path) -> None:
    """`user.max_user_namespaces=0`, which hardening guides recommend; here in a user namespace of the test."""
    program = f"{sys.executable} -IS {Path(shim.oci_runtime.__file__).with_name('__main__.py')} {SELF_TEST} {tmp_path}"
    script = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {program}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert said.returncode != 0
    assert "user.max_user_namespaces" in said.stderr


def test_user_namespaces_are_refused_where_the_servers_files_cannot_be_mapped(
    start: Started, node_dirs: NodeDirs, tmp_path: Path
) -> None:
    """As on a node that is a container without a volume for `root_directory`."""
    with tmpfs(tmp_path / "disk", "mode=755") as disk:
        for name in ("lower", "upper", "work"):
            (disk / name).mkdir()
        layers = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        run(["mount", "-t", "overlay", "-o", layers, "overlay", node_dirs.state], timeout=MOUNT_SECONDS)
        try:
            served = start()

            def reason() -> str:
                answer = served.cri.runtime.Status(pb.StatusRequest(verbose=True))
                return str(json.loads(answer.info["config"])["userNamespaces"])

            wait_until(lambda: reason() == f"{node_dirs.state}: map the ids of a mount: Invalid argument")
            assert not features(served.cri).user_namespaces
            served.clear()
            served.server.stop()
        finally:
            run(["umount", "--lazy", node_dirs.state], timeout=MOUNT_SECONDS)


def test_removed_rules_of_all_tables_do_not_stop_new_pods_and_doctor_names_the_old(
    start: Started, images: Images, node_dirs: NodeDirs
) -> None:
    """As firewalld does at its restart, and administrators do by `nft flush ruleset`."""
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    network = conflist(bridge(node_dirs.cni_leases, link=LINK), portmap)
    (node_dirs.cni_conf / "10-pods.conflist").write_text(network)
    served = start()
    kubelet = Kubelet(served.cri, images.busybox)
    old = kubelet.pod(port_mappings=[pb.PortMapping(container_port=80, host_port=31991)])
    assert "no rule for" not in doctor(served).stdout
    run(["nft", "flush", "ruleset"], timeout=MOUNT_SECONDS)
    new = kubelet.pod(port_mappings=[pb.PortMapping(container_port=80, host_port=31990)])
    for each in (old, new):
        assert served.cri.sandbox_status(each.id).state == pb.SANDBOX_READY

    said = doctor(served).stdout
    assert f"no rule for port 31991 of pod default/{old.config.metadata.name}" in said
    assert "31990" not in said
    kubelet.remove_all()
