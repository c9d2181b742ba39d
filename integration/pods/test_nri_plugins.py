"""Plugins of the NRI project and of containers/nri-plugins, built from their Go sources.

They are not in this repository: NRI_PLUGINS names the directory of their programs. A test whose plugin is missing is
skipped.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest

from integration import nri_plugins
from integration.conftest import Images, NodeDirs, Served, serving
from integration.fields.limits import MIB, V2, kernel, limited, update
from integration.node.commands import allowed
from integration.node.engine import Engine
from integration.pods.kubelet import Kubelet, pid_of, refusal
from integration.pods.test_nri import docker, docker_exec, kubelet
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

__all__ = ["kubelet"]  # the fixture

PROGRAMS = Path(os.environ.get("NRI_PLUGINS", "/nonexistent"))


def program_of(name: str) -> Path:
    """Return the program of a plugin, or skip the test."""
    if not (PROGRAMS / name).is_file():
        pytest.skip(f"{name} is not in NRI_PLUGINS")
    return PROGRAMS / name


def running(served: Served, *names: str, log: Path, options: Sequence[str] = ()) -> AbstractContextManager[None]:
    """Run plugins inside the block."""
    return nri_plugins.running(served, [program_of(name) for name in names], log=log, options=options)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "plugins.log"


def test_device_injector_adds_devices_and_mounts(served: Served, kubelet: Kubelet, log: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("injected\n")
    with running(served, "device-injector", log=log):
        device = "- path: /dev/mine\n  type: c\n  major: 1\n  minor: 3\n  file_mode: 438\n"
        mount = f"- source: {tmp_path}\n  destination: /mine\n  type: bind\n  options: [rbind, ro]\n"
        pod = kubelet.pod(annotations={"devices.nri.io/pod": device, "mounts.nri.io/pod": mount})
        container = kubelet.started(pod)
        shown = kubelet.inside(container, "cat /mine/file; echo x > /dev/mine && stat -c %t:%T:%a /dev/mine")
    assert shown.split() == ["injected", "1:3:666"]


def test_ulimit_adjuster_sets_limits_for_exec_too(served: Served, kubelet: Kubelet, log: Path) -> None:
    with running(served, "ulimit-adjuster", log=log):
        pod = kubelet.pod(
            annotations={
                "ulimits.noderesource.dev/container.limited": "- type: RLIMIT_NOFILE\n  soft: 1111\n  hard: 2222\n"
            }
        )
        name = pb.ContainerMetadata(name="limited")
        container = kubelet.started(pod, "sh", "-c", "ulimit -n > /limit; sleep 3600", metadata=name)
        wait_until(lambda: kubelet.inside(container, "cat /limit").strip() == "1111")
        assert kubelet.inside(container, "ulimit -Hn").strip() == "2222"
        # The soft limit is not certain: runc 1.1.5 may raise it to the hard limit in each exec.
        assert docker_exec(served, container, "ulimit -Hn").strip() == "2222"


def test_hook_injector_runs_hooks_of_the_node(served: Served, kubelet: Kubelet, log: Path, tmp_path: Path) -> None:
    hooks = Path("/etc/containers/oci/hooks.d")
    missing = [path for path in (hooks, *hooks.parents) if not path.exists()]
    hooks.mkdir(parents=True, exist_ok=True)
    script, made = tmp_path / "hook", tmp_path / "made"
    script.write_text(f"#!/bin/sh\ncat > {made}\n")
    script.chmod(0o755)
    definition = hooks / "test.json"
    wanted = {"hook": {"path": str(script)}, "when": {"always": True}, "stages": ["createRuntime"]}
    definition.write_text(json.dumps({"version": "1.0.0", **wanted}))
    try:
        with running(served, "hook-injector", log=log):
            container = kubelet.started(kubelet.pod())
            assert container in made.read_text()
    finally:
        definition.unlink()
        for path in missing:
            path.rmdir()


def test_three_plugins_together_change_only_their_fields(served: Served, kubelet: Kubelet, log: Path) -> None:
    with running(served, *nri_plugins.TOGETHER, log=log):
        pod = kubelet.pod()
        container = kubelet.started(pod)
        assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
        served.cri.stop_container(container)
        served.cri.remove_container(container)
        served.cri.remove(pod.id)
    heard = log.read_text()
    for event in ("CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "RemovePodSandbox"):
        assert event in heard


# Plugins without an option for the socket: the server starts them

CONFIGURATIONS = {
    "memory-qos": (
        "classes:\n- {name: bronze, swaplimitratio: 0.5}\n- {name: silver, swaplimitratio: 0.25}\n"
        "unifiedannotations: [memory.swap.max, memory.high]\n"
    ),
    "memtierd": "classes:\n- {name: noswap, allowswap: false}\n",
    "sgx-epc": "",
}
LIMIT = 64 * MIB


@contextmanager
def installed(engine: Engine, dirs: NodeDirs, name: str) -> Iterator[Served]:
    """Run a server that has this plugin and its configuration on the node."""
    program = program_of(name)
    programs, configurations = dirs.state.with_name("plugins"), dirs.state.with_name("conf.d")
    for each in (programs, configurations):
        each.mkdir()
    (programs / f"40-{name}").symlink_to(program)
    (configurations / f"{name}.conf").write_text(CONFIGURATIONS[name])
    places = {"nri_plugin_path": programs, "nri_plugin_config_path": configurations}
    timeouts = {"nri_plugin_registration_timeout": allowed(5), "nri_plugin_request_timeout": allowed(2)}
    with serving(engine, dirs, network_plugin="none", **places, **timeouts) as served:
        assert nri_plugins.plugins_of(served) == [f"40-{name}"]
        yield served
        assert nri_plugins.plugins_of(served) == [f"40-{name}"]


@pytest.mark.skipif(V2, reason="this machine has cgroup v2")
@pytest.mark.parametrize(
    ("name", "annotation"),
    [
        ("memory-qos", ("class.memory-qos.nri.io", "silver")),
        ("memory-qos", ("memory.high.memory-qos.nri.io", "max")),
        ("memtierd", ("class.memtierd.nri.io", "noswap")),
        ("sgx-epc", ("epc-limit.nri.io/pod", "8192")),
    ],
    ids=["class", "file", "memtierd", "sgx-epc"],
)
def test_files_of_cgroup_v2_are_refused_on_v1(
    engine: Engine, images: Images, node_dirs: NodeDirs, name: str, annotation: tuple[str, str]
) -> None:
    with installed(engine, node_dirs, name) as served:
        kubelet = Kubelet(served.cri, images.busybox)
        key, value = annotation
        asking, other = kubelet.pod(annotations={key: value}), kubelet.pod()

        code, message = refusal(lambda: kubelet.created(asking, linux=limited(memory_limit_in_bytes=LIMIT)))

        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "unified needs cgroup v2; this node has v1" in message
        assert served.cri.containers() == []
        container = kubelet.started(other, linux=limited(memory_limit_in_bytes=LIMIT))
        assert docker(served, container)["HostConfig"]["Memory"] == LIMIT


@pytest.mark.skipif(not V2, reason="files of cgroup v2")
@pytest.mark.parametrize(
    ("name", "annotations", "files"),
    [
        (
            "memory-qos",
            {"class.memory-qos.nri.io": "silver"},
            {"memory.high": str(LIMIT * 3 // 4), "memory.swap.max": "max"},
        ),
        (
            "memory-qos",
            {"class.memory-qos.nri.io": "bronze", "memory.swap.max.memory-qos.nri.io": str(MIB)},
            {"memory.high": str(LIMIT // 2), "memory.swap.max": str(MIB)},
        ),
        ("memtierd", {"class.memtierd.nri.io": "noswap"}, {"memory.swap.max": "0"}),
    ],
    ids=["class", "class and file", "memtierd"],
)
def test_a_memory_class_sets_files_of_cgroup_v2(
    engine: Engine, images: Images, node_dirs: NodeDirs, name: str, annotations: dict[str, str], files: dict[str, str]
) -> None:
    with installed(engine, node_dirs, name) as served:
        kubelet = Kubelet(served.cri, images.busybox)
        pod = kubelet.pod(annotations=annotations)
        container = kubelet.started(pod, linux=limited(memory_limit_in_bytes=LIMIT))

        assert kernel(served, container, files) == files
        assert dict(served.cri.container_status(container).resources.linux.unified) == files
        update(served.cri, container, cpu_shares=512)
        assert kernel(served, container, files) == files


def test_memory_qos_refuses_a_class_without_a_memory_limit(engine: Engine, images: Images, node_dirs: NodeDirs) -> None:
    with installed(engine, node_dirs, "memory-qos") as served:
        kubelet = Kubelet(served.cri, images.busybox)
        pod = kubelet.pod(annotations={"class.memory-qos.nri.io": "silver"})

        _, message = refusal(lambda: kubelet.created(pod))

        assert 'cannot apply memory QoS class "silver": missing container memory limit' in message


# Resource policies

BALLOONS = """
apiVersion: config.nri/v1alpha1
kind: BalloonsPolicy
metadata: {name: default}
spec:
  pinCPU: true
  pinMemory: true
  reservedResources: {cpu: "cpuset:0"}
  balloonTypes:
  - {name: own, minCPUs: 1, maxCPUs: 1, preferNewBalloons: true}
  - {name: shared, namespaces: ["*"], shareIdleCPUsInSame: system}
"""
TOPOLOGY_AWARE = """
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec:
  pinCPU: true
  pinMemory: true
  reservedResources: {cpu: 750m}
"""
two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two processors")


def policy(served: Served, name: str, configuration: str, *, log: Path) -> AbstractContextManager[None]:
    """Run a plugin of containers/nri-plugins that assigns processors, without a cluster."""
    home = log.parent
    (home / "policy.yaml").write_text(configuration)
    options = ["-nri-plugin-name", name, "-config-file", str(home / "policy.yaml")]
    options += ["-state-dir", str(home / "state"), "-pid-file", str(home / "pid")]
    return running(served, name, log=log, options=options)


def pinned(served: Served, container: str) -> set[int]:
    """Return the processors of a container, on which the kernel, Docker and the server agree."""
    found: str = docker(served, container)["HostConfig"]["CpusetCpus"]
    assert served.cri.container_status(container).resources.linux.cpuset_cpus == found
    assert f"\nCpus_allowed_list:\t{found}\n" in Path(f"/proc/{pid_of(served, container)}/status").read_text()
    return processors(found)


def processors(text: str) -> set[int]:
    """Return the numbers of a list such as `0,2-3`."""
    ranges = (part.partition("-") for part in text.split(","))
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


@two_processors
def test_balloons_moves_a_running_container_off_the_processor_of_another(
    served: Served, kubelet: Kubelet, log: Path
) -> None:
    own = {"balloon.balloons.resource-policy.nri.io": "own"}
    with policy(served, "balloons", BALLOONS, log=log):
        shared = kubelet.started(kubelet.pod())
        before = pinned(served, shared)
        first = kubelet.started(kubelet.pod(annotations=own))
        alone = pinned(served, first)
        assert len(alone) == 1
        assert pinned(served, shared) == before - alone

        served.cri.stop_container(first)  # the plugin frees the processor
        assert pinned(served, kubelet.started(kubelet.pod(annotations=own))) == alone


@two_processors
def test_topology_aware_gives_a_guaranteed_container_a_processor(served: Served, kubelet: Kubelet, log: Path) -> None:
    # The plugin reads the class of a pod from its cgroup.
    parent = pb.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1")
    whole = limited(cpu_shares=1024, cpu_quota=100_000, cpu_period=100_000, memory_limit_in_bytes=LIMIT)
    with policy(served, "topology-aware", TOPOLOGY_AWARE, log=log):
        container = kubelet.started(kubelet.pod(linux=parent), linux=whole)
        (processor,) = pinned(served, container)
        exported = kubelet.inside(container, "cat /.nri-resource-policy/resources.sh")  # a file that the plugin mounts
        assert f'EXCLUSIVE_CPUS="{processor}"' in exported.splitlines()
