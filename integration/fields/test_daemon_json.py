"""Pods on daemons with an administrator's daemon.json: docs/daemon-json.md says how each option affects pods.

By default two files with as many options as can be combined; the others run when an engine is named.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.conftest import Served, make_engine
from integration.cri import HOST_NETWORK
from integration.fields.daemons import DAEMONS, DEFAULT_DAEMONS, OTHER_RUNTIME, options, settings_for
from integration.fields.limits import V2
from integration.fields.test_daemon_defaults import served_by
from integration.node.commands import run
from integration.node.engine import Engine, program
from integration.node.images import Image
from integration.node.isolation import Node
from integration.pods.kubelet import Kubelet, in_namespaces, pid_of, proc_status, secured
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

LINES = 20_000
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Daemon:
    """A server on a daemon of DAEMONS; `name` is its key."""

    name: str
    settings: dict[str, object]
    served: Served
    kubelet: Kubelet


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses a daemon on every daemon."""
    if "daemon" in metafunc.fixturenames:
        config = metafunc.config
        names = DAEMONS if config.getoption("--engine") or config.getoption("--all-engines") else DEFAULT_DAEMONS
        metafunc.parametrize("daemon", list(names), indirect=True, scope="module")


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, engine: Engine, node: Node, pause_image: Image) -> Iterator[Daemon]:
    """Run a daemon of DAEMONS and a server."""
    name = str(request.param)
    runtime = program("runc", engine.binaries)
    settings = settings_for(DAEMONS[name], engine=engine.name, runtime=runtime, parent=engine.cgroup_below("daemons"))
    if not settings:
        pytest.skip("this engine knows none of these options")
    own = make_engine(node, engine.name, variant=name[0], settings=settings)
    with served_by(own, node, pause_image) as (served, kubelet):
        yield Daemon(name, settings, served, kubelet)


def test_the_table_of_options_has_those_of_dockerd(engine: Engine) -> None:
    help_text = run([program("dockerd", engine.binaries), "--help"], timeout=60)
    release = engine.name.partition("-")[0]

    flags = set(re.findall(r"--([a-z0-9-]+) ", help_text))
    assert flags
    assert flags == {flag for _key, flag, engines in options() if release in engines and flag in flags}


def test_the_log_holds_exactly_the_containers_output(daemon: Daemon, tmp_path: Path) -> None:
    pod = daemon.kubelet.pod(log_directory=str(tmp_path))
    script = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; done"
    envs = [pb.KeyValue(key="log", value=b"secret")]
    container = daemon.kubelet.started(pod, "sh", "-c", script, log_path="0.log", envs=envs, labels={"log": "secret"})
    status = daemon.kubelet.cri.container_status
    wait_until(lambda: status(container).state == pb.CONTAINER_EXITED, 60)

    lines = (tmp_path / "0.log").read_text().splitlines()
    assert [line.split(" ", 3)[1:] for line in lines] == [["stdout", "F", str(number + 1)] for number in range(LINES)]
    log = daemon.served.engine.api.inspect_container(container)["HostConfig"]["LogConfig"]["Config"]
    assert log["mode"] == "blocking"
    assert not any(log.get(name) for name in ("labels", "labels-regex", "env", "env-regex", "tag"))


def test_processes_privileges_and_namespaces_follow_the_pod(daemon: Daemon) -> None:
    own = {"linux": in_namespaces(pid=pb.CONTAINER)}
    container = daemon.kubelet.started(daemon.kubelet.pod(), **own)

    assert daemon.kubelet.inside(container, "cat /proc/1/comm") == "sleep\n"
    assert proc_status(daemon.served, container)["NoNewPrivs"] == ["0"]
    namespace = Path(f"/proc/{pid_of(daemon.served, container)}/ns/cgroup").readlink()
    assert (namespace != Path("/proc/self/ns/cgroup").readlink()) == V2


def test_the_size_of_shared_memory_follows_the_pod(daemon: Daemon) -> None:
    pod = daemon.kubelet.pod()
    one, other = daemon.kubelet.started(pod), daemon.kubelet.started(pod)

    daemon.kubelet.inside(one, "echo shared > /dev/shm/file")

    assert daemon.kubelet.inside(other, "cat /dev/shm/file") == "shared\n"
    size = os.statvfs(f"/proc/{pid_of(daemon.served, one)}/root/dev/shm")
    assert size.f_blocks * size.f_frsize == 64 * MIB


@pytest.mark.parametrize("linux", [pb.LinuxPodSandboxConfig(), HOST_NETWORK], ids=["own network", "host network"])
def test_resolv_conf_follows_the_node_or_the_pod(daemon: Daemon, linux: pb.LinuxPodSandboxConfig) -> None:
    bare = daemon.kubelet.started(daemon.kubelet.pod(linux=linux))
    dns = pb.DNSConfig(servers=["10.96.0.10"], searches=["a.test"], options=["ndots:5"])
    told = daemon.kubelet.started(daemon.kubelet.pod(linux=linux, dns_config=dns))

    assert daemon.kubelet.inside(bare, "cat /etc/resolv.conf") == Path("/etc/resolv.conf").read_text()
    assert "nameserver 10.96.0.10\nsearch a.test\n" in daemon.kubelet.inside(told, "cat /etc/resolv.conf")


def test_the_network_comes_from_cni(daemon: Daemon) -> None:
    pod = daemon.kubelet.pod()
    container = daemon.kubelet.started(pod)

    assert daemon.kubelet.cri.sandbox_status(pod.id).network.ip.startswith("10.85.")
    assert daemon.kubelet.inside(container, "cat /sys/class/net/eth0/mtu") == "1500\n"
    other = daemon.kubelet.cri.sandbox_status(daemon.kubelet.pod().id).network.ip
    assert "1 packets received" in daemon.kubelet.inside(container, f"ping -c 1 -W 5 {other}")


def test_the_daemons_proxies_are_not_in_the_environment(daemon: Daemon) -> None:
    container = daemon.kubelet.started(daemon.kubelet.pod())

    assert "proxy" not in daemon.kubelet.inside(container, "env").lower()


def test_a_pod_gets_the_cgroup_parent_that_it_names(daemon: Daemon) -> None:
    parent = daemon.served.engine.cgroup_below("podgroup")
    named = daemon.kubelet.pod(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))
    container = daemon.kubelet.started(named)

    groups = Path(f"/proc/{pid_of(daemon.served, container)}/cgroup").read_text()
    assert f"/{Path(parent).name}/" in groups


def test_processes_inherit_the_daemons_ulimits(daemon: Daemon) -> None:
    """The CRI has no field for ulimits: under the other runtimes processes inherit them from the runtime's unit."""
    container = daemon.kubelet.started(daemon.kubelet.pod(), **secured(run_as_user=pb.Int64Value(value=1000)))
    limit = daemon.settings.get("default-ulimits")

    if isinstance(limit, dict):
        assert daemon.kubelet.inside(container, "ulimit -n; ulimit -H -n").split() == ["1024", "2048"]


def test_pods_run_under_the_default_runtime(daemon: Daemon) -> None:
    container = daemon.kubelet.started(daemon.kubelet.pod())

    used = daemon.served.engine.api.inspect_container(container)["HostConfig"]["Runtime"]
    assert used == daemon.settings.get("default-runtime", "runc")
    handlers = daemon.kubelet.cri.runtime.Status(pb.StatusRequest()).runtime_handlers
    assert (OTHER_RUNTIME in {handler.name for handler in handlers}) == ("runtimes" in daemon.settings)
