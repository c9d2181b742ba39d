"""A hundred pods with exec probes and a real kubelet: `python -m integration.bench.hundred --bin DIR`, in isolation.

A Deployment is created, and the time until all its pods are ready is measured, then the cost of the idle node with its
probes. Each round has a new control plane and kubelet. A containerd does the same in turn if its program is given.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from integration.bench import rivals
from integration.bench.processor_time import all_seconds, children_of, machine_seconds, own_seconds
from integration.bench.rounds import rotated
from integration.bench.setup import ENGINES, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.conformance.binaries import NODE, Binaries, find
from integration.conformance.cluster import ContainerRuntime, Kubernetes, kubernetes
from integration.cri import Cri
from integration.node.commands import NodeError, step
from integration.node.images import BUSYBOX
from integration.node.isolation import Node, this_node
from integration.waiting import wait_until

PODS = 100
PROBE_SECONDS = 10
IDLE_SECONDS = 45.0
FACTOR = 1.2
"""Bound on the time until all pods are ready, relative to containerd."""
SERVER_SECONDS = 5.0
"""Bound on the server's processor time until all pods are ready."""
IDLE_CPU_SECONDS = 4.5
"""Bound on the processor time of the server, and of all that an exec starts, in IDLE_SECONDS."""
SERVER = "server"
_READY_SECONDS = 300.0
_GONE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Side:
    """A CRI server, and the directory of its `/proc` entry."""

    runtime: ContainerRuntime
    cri: Cri
    pid: int


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds of a round."""

    ready: float
    """Until all pods are ready."""
    runtime: float
    """Processor time of the CRI server's own processes until then, without CNI plugins."""
    machine: float
    """Processor time of the machine until then."""
    idle: float
    """Processor time of the CRI server's processes, and of all that they have started, in IDLE_SECONDS."""
    idle_machine: float


def measure(engine_name: str, *, binaries: Binaries, rounds: int, containerd: Path | None) -> list[Bar]:
    """Measure the server, and containerd if it is given, in turn. Raises NodeError without Kubernetes."""
    missing = binaries.missing(NODE)
    if missing:
        raise NodeError(binaries.explain(missing))
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs only in isolation: make bench-hundred")
    with prepared(engine_name) as setup, serving(setup) as (server, cri), ExitStack() as stack:
        runtime = ContainerRuntime(server.socket, setup.engine.cgroup_driver, cri.remove_all)
        sides = {SERVER: _Side(runtime, cri, server.daemon.pid)}
        if containerd is not None:
            rival = stack.enter_context(rivals.running(setup, containerd, number=1))
            runtime = ContainerRuntime(rival.socket, "cgroupfs", rival.cri.remove_all)
            sides[rival.name] = _Side(runtime, rival.cri, rival.pid)
        took: dict[str, list[_Took]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in rotated(list(sides), number):
                with step(f"round {number + 1}: {name}"):
                    home = setup.home / f"cluster-{number}-{name}"
                    took[name].append(_round(node, sides[name], binaries, home=home))
    return list(_bars(took))


def _round(node: Node, side: _Side, binaries: Binaries, *, home: Path) -> _Took:
    with kubernetes(node, side.runtime, binaries, home=home) as cluster:
        began, spent, machine = time.monotonic(), _tree_seconds(side.pid, own_seconds), machine_seconds()
        cluster.kubectl.apply(_deployment())
        wait_until(lambda: _ready(cluster) == PODS, _READY_SECONDS)
        ready = time.monotonic() - began
        own, before_idle = _tree_seconds(side.pid, own_seconds), _tree_seconds(side.pid, all_seconds)
        machine_now = machine_seconds()
        time.sleep(IDLE_SECONDS)
        took = _Took(
            ready=ready,
            runtime=own - spent,
            machine=machine_now - machine,
            idle=_tree_seconds(side.pid, all_seconds) - before_idle,
            idle_machine=machine_seconds() - machine_now,
        )
        cluster.kubectl("delete", "deployment", "many", "--wait=false")
        wait_until(lambda: not side.cri.sandboxes(), _GONE_SECONDS)
    return took


def _deployment() -> Mapping[str, object]:
    labels = {"app": "many"}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": PROBE_SECONDS, "timeoutSeconds": 10},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "many"},
        "spec": {
            "replicas": PODS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _ready(cluster: Kubernetes) -> int:
    found = cluster.api.get("/apis/apps/v1/namespaces/default/deployments/many")
    return int(found["status"].get("readyReplicas", 0))


def _tree_seconds(pid: int, seconds: Callable[[int], float]) -> float:
    """Return the sum of a figure over a process and its children."""
    total = seconds(pid)
    for child in children_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            total += seconds(child)
    return total


def _bars(took: Mapping[str, list[_Took]]) -> Iterator[Bar]:
    medians = {
        name: _Took(*(statistics.median(getattr(each, field) for each in rounds) for field in _Took.__slots__))
        for name, rounds in took.items()
    }
    for name, each in medians.items():
        if name != SERVER:
            ratio = medians[SERVER].ready / each.ready
            yield Bar(f"{PODS} pods ready: beside {name}, {each.ready:.1f} s", ratio, "times", FACTOR, at_most=True)
        yield _figure(f"{name}: {PODS} pods ready", each.ready)
        yield _figure(f"{name}: processor time until then", each.runtime, SERVER_SECONDS if name == SERVER else None)
        yield _figure(f"{name}: processor time of the machine until then", each.machine)
        what = f"{name}: processor time in {IDLE_SECONDS:.0f} s with probes"
        yield _figure(what, each.idle, IDLE_CPU_SECONDS if name == SERVER else None)
        yield _figure(f"{name}: of the machine in that time", each.idle_machine)


def _figure(what: str, seconds: float, bound: float | None = None) -> Bar:
    return Bar(what, seconds, "s", float("inf") if bound is None else bound, at_most=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.hundred", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--bin", type=Path, help="directory of etcd and Kubernetes, searched before PATH")
    parser.add_argument("--rounds", type=int, default=3, help="rounds on each side (%(default)s)")
    parser.add_argument("--beside", type=Path, help="measure this containerd too")
    arguments = parser.parse_args()
    try:
        binaries = find(arguments.bin, NODE)
    except NodeError as cause:
        parser.error(str(cause))
    return print_bars(
        partial(measure, arguments.engine, binaries=binaries, rounds=arguments.rounds, containerd=arguments.beside)
    )


if __name__ == "__main__":
    sys.exit(main())
