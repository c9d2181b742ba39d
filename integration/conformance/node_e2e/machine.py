"""What Kubernetes' node suite expects of a machine, beyond the namespaces of an isolated run."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from integration.conformance import registries
from integration.conformance.binaries import Binaries
from integration.conformance.cluster import tunables_kept
from integration.conformance.logind import Logind
from integration.conformance.node_e2e import units
from integration.conformance.node_e2e.images import images
from integration.conformance.target import target
from integration.conftest import Served
from integration.node.commands import run
from integration.node.engine import ordered_runtime, program
from integration.node.isolation import NODE_ADDRESSES, OUTSIDE, Node, new_home
from integration.node.own_root import join
from shim.checkpoint.root import ORDERS

KUBELET_HOME = Path("/var/lib/kubelet")
"""The suite's kubelet has no other."""

_REPOSITORY = Path(__file__).parents[3]
_HANDLER = "test-handler"
"""A runtime class handler that the suite expects."""
_MOUNT_SECONDS = 60
_KUBELET_DISK = "8g"
RUNTIME_GROUP = "/runtime"
_PROGRAMS = {
    "sudo": 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n',
    **{
        name: f'exec {shlex.quote(sys.executable)} -m integration.conformance.node_e2e.units {name} "$@"\n'
        for name in ("systemctl", "systemd-run")
    },
}
"""Scripts that stand for programs of a machine with systemd."""
KUBELET_SETTINGS: Mapping[str, object] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": "/",
    "systemCgroups": "/system",  # the suite expects it of a machine without systemd
    "failCgroupV1": False,
    "failSwapOn": False,
    "oomScoreAdj": 0,  # a lower value needs CAP_SYS_RESOURCE, which a container may lack
    "podCIDR": "10.100.0.0/24",
    "volumeStatsAggPeriod": "10s",
    "fileCheckFrequency": "10s",
    "evictionPressureTransitionPeriod": "30s",
    "evictionHard": {"memory.available": "250Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
    "evictionMinimumReclaim": {"nodefs.available": "5%", "nodefs.inodesFree": "5%"},
    "serializeImagePulls": False,
    "makeIPTablesUtilChains": False,
}
"""The suite's own for its tests in public, with the settings that isolation forbids turned off."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A furnished machine: the server, and the environment and the kubelet's settings for the suite."""

    served: Served
    environ: Mapping[str, str]
    kubelet_settings: Path


@contextmanager
def furnished(node: Node, engine_name: str, found: Binaries) -> Iterator[Machine]:
    """Furnish the machine while the block runs; the namespaces of mounts and control groups must be the run's own."""
    home = new_home("node-e2e")
    (home / "bin").mkdir(parents=True)
    for name, script in _PROGRAMS.items():
        (home / "bin" / name).write_text(f"#!/bin/sh\n{script}")
        (home / "bin" / name).chmod(0o755)
    (home / "kubelet.json").write_bytes(msgspec.json.encode(KUBELET_SETTINGS))
    _mount("/var/log", size="2g")
    KUBELET_HOME.mkdir(exist_ok=True)
    _mount(str(KUBELET_HOME), size=_KUBELET_DISK)
    run(["mount", "--make-rshared", KUBELET_HOME], timeout=_MOUNT_SECONDS)
    path = f"{home / 'bin'}{os.pathsep}{found['e2e_node.test'].parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(_REPOSITORY)}
    with ExitStack() as stack:
        units.HOME.mkdir()
        stack.callback(shutil.rmtree, units.HOME)
        logind = Logind(home / "system-bus")
        stack.callback(logind.close)
        environ["DBUS_SYSTEM_BUS_ADDRESS"] = logind.address
        stack.enter_context(tunables_kept())
        # The engine and the server are in a group of their own, whose usage the kubelet reports.
        join(RUNTIME_GROUP)
        served = stack.enter_context(target(node, engine_name, settings=_settings(node, home)))
        join("/")
        for name in stack.enter_context(registries.serving_images(node, served.engine.api, images(node, found))):
            # The first test with an image then need not wait for it.
            served.engine.api.pull(f"registry.k8s.io/{name}")
        _send_traffic()
        stack.callback(units.stop_all)
        yield Machine(served, environ, home / "kubelet.json")


def _settings(node: Node, home: Path) -> dict[str, object]:
    runtimes = {_HANDLER: {"path": str(program("runc", node.stable.path))}}
    own = ordered_runtime(home, orders=home / ORDERS)
    local = {"insecure-registries": [*registries.NAMES, "localhost:5000"]}
    return {"runtimes": {**own, **runtimes}, **local}


def _mount(where: str, *, size: str) -> None:
    run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={size}", "tmpfs", where], timeout=_MOUNT_SECONDS)


def _send_traffic() -> None:
    """Let the node's interface receive some packets: the suite expects that a node has traffic."""
    address = NODE_ADDRESSES[0].partition("/")[0]
    send = f"for _ in {{1..3000}}; do printf %01400d 0 >/dev/udp/{address}/9; done"
    run(["nsenter", f"--net={OUTSIDE}", "bash", "-c", send], timeout=_MOUNT_SECONDS)
