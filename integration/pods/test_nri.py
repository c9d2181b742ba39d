"""NRI plugins on a real Engine: a plugin on the real socket, and its changes seen inside containers."""

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.nri_plugins import info_of, plugins_of
from integration.pods.kubelet import Kubelet, in_context, pid_of, refusal, secured
from integration.pods.user_namespaces import FIRST, own_users
from integration.waiting import wait_until
from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.nri.plugin import ALL_EVENTS, VALIDATE
from tests.nri.plugin import TestPlugin, connected

Code = grpc.StatusCode
Answer = Callable[[nri.CreateContainerRequest], nri.CreateContainerResponse]


class Plugins:
    """Plugins that are connected to the server under test."""

    def __init__(self, served: Served, stack: ExitStack) -> None:
        self._served = served
        self._stack = stack

    def connect(
        self, index: str = "10", name: str = "test", *, events: int = ALL_EVENTS & ~VALIDATE.mask
    ) -> TestPlugin:
        plugin = self._stack.enter_context(connected(self._served.server.nri_socket, index, name, events=events))
        wait_until(lambda: f"{index}-{name}" in plugins_of(self._served))
        return plugin

    def changing(self, **fields: Any) -> TestPlugin:
        """Connect a plugin that adjusts every container with this ContainerAdjustment."""
        plugin = self.connect()
        answer = nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(**fields))
        plugin.handlers["CreateContainer"] = lambda _: answer
        return plugin


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    before = served.snapshot()
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
    assert served.snapshot() == before
    orders = served.engine.home / "oci"
    assert not orders.is_dir() or not any(orders.iterdir())


@pytest.fixture
def plugins(served: Served, kubelet: Kubelet) -> Iterator[Plugins]:  # noqa: ARG001 - so that it ends after the plugins
    with ExitStack() as stack:
        yield Plugins(served, stack)
    wait_until(lambda: not plugins_of(served))


def docker(served: Served, container: str) -> dict[str, Any]:
    found: dict[str, Any] = served.engine.api.inspect_container(container)
    return found


def docker_exec(served: Served, container: str, script: str) -> str:
    api = served.engine.api
    made = api.exec_create(container, ["sh", "-c", script])
    return api.exec_start(made["Id"]).decode()


def of_linux(**fields: Any) -> dict[str, Any]:
    return {"linux": nri.LinuxContainerAdjustment(**fields)}


def env(key: str, value: str = "") -> nri.KeyValue:
    return nri.KeyValue(key=key, value=value)


# Inside the container


def test_a_process_has_the_variables_arguments_and_limits_of_a_plugin(
    served: Served, kubelet: Kubelet, plugins: Plugins
) -> None:
    plugins.changing(
        env=[env("ADDED", "a b=c"), env("GIVEN", "changed"), env("-GONE")],
        args=["sh", "-c", "env > /env; ulimit -n >> /env; cat /proc/self/oom_score_adj >> /env; sleep 3600"],
        rlimits=[nri.POSIXRlimit(type="RLIMIT_NOFILE", soft=1234, hard=2345)],
        **of_linux(oom_score_adj=nri.OptionalInt(value=321)),
    )
    given = [
        pb.KeyValue(key="GIVEN", value=b"x"),
        pb.KeyValue(key="GONE", value=b"x"),
        pb.KeyValue(key="KEPT", value=b"k"),
    ]
    container = kubelet.started(kubelet.pod(), envs=given)

    wait_until(lambda: kubelet.inside(container, "tail -1 /env").strip() == "321")
    lines = kubelet.inside(container, "cat /env").splitlines()
    assert {"ADDED=a b=c", "GIVEN=changed", "KEPT=k", "1234"} <= set(lines)
    assert not any(line.startswith("GONE") for line in lines)
    assert served.cri.container_status(container).resources.linux.oom_score_adj == 321


@pytest.mark.parametrize("way", ["cri", "docker"])
def test_an_exec_has_the_variables_and_limits_of_a_plugin(
    served: Served, kubelet: Kubelet, plugins: Plugins, way: str
) -> None:
    plugins.changing(
        env=[env("ADDED", "yes"), env("GIVEN", "changed"), env("-GONE")],
        rlimits=[nri.POSIXRlimit(type="RLIMIT_NOFILE", soft=1234, hard=2345)],
    )
    given = [pb.KeyValue(key="GIVEN", value=b"x"), pb.KeyValue(key="GONE", value=b"x")]
    container = kubelet.started(kubelet.pod(), envs=given)

    run = kubelet.inside if way == "cri" else partial(docker_exec, served)
    shown = run(container, "echo $ADDED $GIVEN ${GONE-gone}; ulimit -n; ulimit -Hn").split()

    assert shown == ["yes", "changed", "gone", "1234", "2345"]


def test_mounts_and_devices_of_a_plugin_are_in_the_container(
    kubelet: Kubelet, plugins: Plugins, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("from the node\n")
    null = Path("/dev/null").stat()
    device = nri.LinuxDevice(path="/dev/mine", type="c", major=os.major(null.st_rdev), minor=os.minor(null.st_rdev))
    plugins.changing(
        mounts=[
            nri.Mount(destination="/given/inside", type="bind", source=str(tmp_path), options=["rbind", "ro"]),
            nri.Mount(destination="/memory", type="tmpfs", source="tmpfs", options=["size=64k"]),
            nri.Mount(destination="-/gone"),
        ],
        **of_linux(devices=[device]),
    )
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    mounts = [pb.Mount(host_path=str(other), container_path=path) for path in ("/given", "/gone")]
    container = kubelet.started(kubelet.pod(), mounts=mounts)

    shown = kubelet.inside(
        container,
        "cat /given/inside/file; touch /given/inside/x 2>/dev/null || echo read-only; grep -c ' /gone ' /proc/mounts; "
        "echo x > /dev/mine && stat -c %t:%T /dev/mine; grep -c ' /memory tmpfs' /proc/mounts",
    )
    assert shown.split("\n")[0] == "from the node"
    assert "read-only" in shown
    assert shown.split()[-3:] == ["0", "1:3", "1"]


def test_hooks_of_a_plugin_run(kubelet: Kubelet, plugins: Plugins, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/$1-$VALUE\n")
    hook.chmod(0o755)

    def at(point: str) -> list[nri.Hook]:
        return [nri.Hook(path=str(hook), args=["hook", point], env=["VALUE=x", "PATH=/usr/bin:/bin"])]

    plugins.changing(hooks=nri.Hooks(create_runtime=at("create"), poststart=at("started"), poststop=at("stopped")))
    container = kubelet.started(kubelet.pod())

    state = json.loads((tmp_path / "create-x").read_text())
    assert state["id"] == container
    wait_until((tmp_path / "started-x").exists)
    assert not (tmp_path / "stopped-x").exists()
    kubelet.cri.remove_container(container)
    wait_until((tmp_path / "stopped-x").exists)


def test_annotations_sysctls_and_namespaces_are_in_force(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    plugins.changing(
        annotations={"example/one": "1"},
        **of_linux(
            sysctl={"kernel.shm_rmid_forced": "1"},
            namespaces=[nri.LinuxNamespace(type="ipc"), nri.LinuxNamespace(type="cgroup")],
        ),
    )
    pod = kubelet.pod()
    container = kubelet.started(pod)

    assert kubelet.inside(container, "cat /proc/sys/kernel/shm_rmid_forced").strip() == "1"
    pid, pause = pid_of(served, container), pid_of(served, pod.id)
    for kind in ("ipc", "cgroup"):
        assert Path(f"/proc/{pid}/ns/{kind}").stat().st_ino != Path(f"/proc/{pause}/ns/{kind}").stat().st_ino


def test_seccomp_policy_of_a_plugin_is_in_force(kubelet: Kubelet, plugins: Plugins) -> None:
    denied = nri.LinuxSyscall(
        names=["mkdir", "mkdirat"], action="SCMP_ACT_ERRNO", errno_ret=nri.OptionalUInt32(value=95)
    )
    policy = nri.LinuxSeccomp(default_action="SCMP_ACT_ALLOW", syscalls=[denied])
    plugins.changing(**of_linux(seccomp_policy=policy))
    container = kubelet.started(kubelet.pod())

    assert "not supported" in kubelet.inside(container, "mkdir /new")


def test_a_container_in_a_user_namespace_is_changed_too(
    served: Served, kubelet: Kubelet, plugins: Plugins, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("from the node\n")
    tmp_path.chmod(0o755)  # the node's root is nobody in there
    wait_until(lambda: served.cri.runtime.Status(pb.StatusRequest()).features.user_namespaces_host_network)
    plugins.changing(
        env=[env("ADDED", "yes")],
        mounts=[nri.Mount(destination="/m", type="bind", source=str(tmp_path), options=["rbind", "ro"])],
        rlimits=[nri.POSIXRlimit(type="RLIMIT_NOFILE", soft=123, hard=123)],
    )
    pod = kubelet.pod(**in_context(namespace_options=own_users()))
    container = kubelet.started(pod, **secured(namespace_options=own_users()))

    shown = kubelet.inside(container, "echo $ADDED; ulimit -n; cat /m/file; cat /proc/self/uid_map; echo > /dev/stdout")
    assert shown.split()[:5] == ["yes", "123", "from", "the", "node"]
    assert str(FIRST) in shown


def test_a_change_that_runc_rejects_fails_the_start(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    plugins.changing(**of_linux(net_devices={"nowhere0": nri.LinuxNetDevice(name="eth7")}))
    container = kubelet.created(kubelet.pod())

    code, message = refusal(lambda: served.cri.start(container))

    assert code == Code.UNKNOWN
    assert "netDevices" in message or "nowhere0" in message


# Limits


def test_docker_shows_the_limits_of_a_plugin(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    memory = nri.LinuxMemory(limit=nri.OptionalInt64(value=64 << 20), reservation=nri.OptionalInt64(value=32 << 20))
    cpu = nri.LinuxCPU(shares=nri.OptionalUInt64(value=512), cpus="0", quota=nri.OptionalInt64(value=50_000))
    cpu.period.value = 100_000
    limits = nri.LinuxResources(memory=memory, cpu=cpu, pids=nri.LinuxPids(limit=77))
    plugins.changing(**of_linux(resources=limits))
    container = kubelet.started(kubelet.pod())

    host = docker(served, container)["HostConfig"]
    assert (host["Memory"], host["MemoryReservation"], host["PidsLimit"]) == (64 << 20, 32 << 20, 77)
    assert (host["CpuShares"], host["CpusetCpus"], host["CpuQuota"]) == (512, "0", 50_000)
    linux = served.cri.container_status(container).resources.linux
    assert (linux.memory_limit_in_bytes, linux.cpu_shares, linux.cpuset_cpus) == (64 << 20, 512, "0")


def test_limits_of_plugins_survive_a_server_restart_and_a_resize(
    served: Served, kubelet: Kubelet, plugins: Plugins
) -> None:
    plugin = plugins.connect()
    container = kubelet.started(kubelet.pod())
    cpus = nri.LinuxContainerUpdate(resources=nri.LinuxResources(cpu=nri.LinuxCPU(cpus="0")))
    assert plugin.update(nri.ContainerUpdate(container_id=container, linux=cpus)) == []

    served.server.stop()
    served.restart()
    resources = pb.LinuxContainerResources(cpu_shares=300)
    served.cri.runtime.UpdateContainerResources(
        pb.UpdateContainerResourcesRequest(container_id=container, linux=resources)
    )

    linux = served.cri.container_status(container).resources.linux
    assert (linux.cpu_shares, linux.cpuset_cpus) == (300, "0")


# The contract


def test_plugins_get_the_events_of_a_pod_in_order(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = plugins.connect()
    pod = kubelet.pod()
    container = kubelet.started(pod)
    served.cri.stop_container(container)
    served.cri.remove_container(container)
    served.cri.stop(pod.id)
    served.cri.remove(pod.id)

    assert plugin.methods() == [
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ]
    heard: Any = dict(plugin.heard)
    assert heard["RunPodSandbox"].pod.pid > 0
    assert list(heard["CreateContainer"].container.args) == ["sleep", "3600"]
    assert any(line.startswith("PATH=") for line in heard["CreateContainer"].container.env)


def test_plugins_are_notified_of_an_exit(kubelet: Kubelet, plugins: Plugins) -> None:
    plugin = plugins.connect()
    container = kubelet.started(kubelet.pod(), "sh", "-c", "exit 3")
    told = plugin.wait_heard("StopContainer").container
    assert (told.id, told.exit_code) == (container, 3)


def test_two_plugins_that_set_the_same_field_fail_the_create(
    served: Served, kubelet: Kubelet, plugins: Plugins
) -> None:
    answer = nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(env=[env("X")]))
    for index in ("10", "20"):
        plugins.connect(index).handlers["CreateContainer"] = lambda _: answer
    pod = kubelet.pod()

    code, message = refusal(lambda: kubelet.created(pod))

    assert code == Code.FAILED_PRECONDITION
    assert 'plugins "20-test" and "10-test" both tried to set Env X' in message
    assert served.cri.containers() == []


def test_pods_start_despite_a_slow_and_a_dead_plugin(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    release = threading.Event()
    plugins.connect("10", "slow").handlers["CreateContainer"] = lambda _: release.wait(60)
    dying = plugins.connect("20", "dying")
    dying.handlers["CreateContainer"] = lambda _: dying.socket.shutdown(socket.SHUT_RDWR)

    container = kubelet.started(kubelet.pod())

    assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
    wait_until(lambda: plugins_of(served) == [])
    release.set()


def test_a_reconnecting_plugin_gets_each_container_once(served: Served, kubelet: Kubelet, plugins: Plugins) -> None:
    pod = kubelet.pod()
    containers = [kubelet.started(pod) for _ in range(3)]
    for restart in (False, True):
        if restart:
            served.server.stop()
            served.restart()
        plugin = plugins.connect("10", f"again{restart:d}")
        request = plugin.wait_heard("Synchronize")
        assert sorted(each.id for each in request.containers) == sorted(containers)
        assert [each.id for each in request.pods] == [pod.id]
        plugin.close()


def test_a_container_that_docker_restarts_keeps_the_plugins_changes(
    served: Served, kubelet: Kubelet, plugins: Plugins
) -> None:
    plugin = plugins.changing(env=[env("ADDED", "yes")], args=["sh", "-c", "echo $ADDED > /seen; sleep 3600"])
    container = kubelet.started(kubelet.pod())
    plugin.close()

    served.engine.api.restart(container, timeout=0)

    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_RUNNING)
    wait_until(lambda: kubelet.inside(container, "cat /seen").strip() == "yes")


def test_only_root_can_use_the_socket_and_it_is_removed_with_the_server(served: Served) -> None:
    path = served.server.nri_socket
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert info_of(served) == {"enabled": True, "plugins": [], "problem": ""}
    served.server.stop()
    assert not path.exists()
    served.restart()
