"""Hundreds of pods while server, plugins and dockerd are killed: no reservation, pin, interface or rule may be left.

In some rounds state and containers are deleted, and no pod is removed through the server.
"""

import math
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

import docker
import grpc

from integration.chaos.faults import FAULTS
from integration.chaos.target import BRIDGE, SUBNET, Target, new_target
from integration.cri import Cri, connected, pod_config
from integration.networks import bridge, conflist, nat_rules
from integration.node.commands import NodeError
from integration.node.isolation import HOME, Node
from shim.api.v1 import api_pb2 as pb

KILLS = ("server kill", "plugins kill", "docker kill")
WIPED = 0.25
"""Share of the rounds in which state and containers are deleted."""
WIDTH = 12
"""Pods that start or stop at the same time."""
MOST_STEPS = 0.25
"""Largest share of a round's pods that start or stop between two kills. Kills by the clock would leave a slow machine
no time between restarts."""
SETTLE_SECONDS = 180.0
"""Time for the cleanup of pods once kills have ended."""
PLUGIN_SECONDS = 60
"""Timeout of a plugin: none hangs here, and many run at once."""
_CALL_SECONDS = 120.0
_AGAIN_SECONDS = 0.1
_FAULT_SECONDS = (0.1, 0.8)
_DELAY_SECONDS = 0.5
"""Longest delay of a kill after a pod has started or stopped, so that it hits other pods at any step of their calls."""
_NETWORK = "stress"
_FIRST_PORT = 20000


@dataclass(slots=True)
class Stressed:
    """Counts and violations of a run."""

    pods: int = 0
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    kept: Path | None = None
    """Directory with the logs of a run with violations."""

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        found = "\n".join(self.violations) or "0 reservations, pins, interfaces and rules over"
        logs = f"\nlogs of the server and of dockerd: {self.kept}" if self.kept else ""
        return f"{self.pods} pods in {self.rounds} rounds; {faults}\n{found}{logs}"


def stress(
    node: Node, *, engine: str, pods: int, width: int, seed: int, seconds: float, say: Callable[[str], None]
) -> Stressed:
    """Run `pods` pods, `width` in each round, or as many as start within `seconds`. Stops at the first violation."""
    random, done = Random(seed), Stressed()
    until = time.monotonic() + seconds
    home = HOME / f"stress-{seed}"
    with (
        new_target(node, engine, home, plugin_seconds=PLUGIN_SECONDS) as target,
        connected(target.dirs.socket) as cri,
    ):
        network = bridge(target.dirs.cni_leases, link=BRIDGE, subnets=(SUBNET, "fd00:95::/64"), ipMasq=True)
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        (target.dirs.cni_conf / "00-stress.conflist").write_text(conflist(network, portmap, name=_NETWORK))
        while done.pods < pods and time.monotonic() < until and not done.violations:
            began = time.monotonic()
            _round(target, cri, done, count=min(width, pods - done.pods), random=random)
            took = time.monotonic() - began
            say(f"round {done.rounds}: {done.pods} of {pods} pods, {done.faults.total()} kills, {took:.0f} s")
        if done.violations:
            done.kept = _kept(target)
    return done


def _round(target: Target, cri: Cri, done: Stressed, *, count: int, random: Random) -> None:
    done.rounds += 1
    numbers = range(done.pods, done.pods + count)
    wiped = random.random() < WIPED
    try:
        most_steps = math.ceil(count * MOST_STEPS)
        with _Kills(target, done, Random(random.random()), most_steps=most_steps) as kills:
            _each(numbers, lambda number: _run(cri, number), kills)
            if not wiped:
                _each(numbers, lambda number: _remove(cri, number), kills)
    except grpc.RpcError as error:
        done.violations.append(f"round {done.rounds}: a pod did not come or go: {error}")
        return
    if wiped:
        done.faults["state lost"] += 1
        _lose_everything(target)
    done.pods += count
    give_up = time.monotonic() + SETTLE_SECONDS
    while (over := _left(target)) and time.monotonic() < give_up:
        time.sleep(_AGAIN_SECONDS)
    done.violations += [f"round {done.rounds}{' (state lost)' if wiped else ''}: {line}" for line in over]


class _Kills:
    """Kill server, plugins or dockerd repeatedly while the block runs; at its end all of them run."""

    def __init__(self, target: Target, done: Stressed, random: Random, *, most_steps: int) -> None:
        self._target, self._done, self._random, self._most_steps = target, done, random, most_steps
        self._steps = threading.Semaphore(0)
        self._calm_since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="kills")

    def step(self) -> None:
        """Count a pod that started or stopped."""
        self._steps.release()

    def calm_seconds(self) -> float:
        """Return the seconds since the last kill."""
        return time.monotonic() - self._calm_since

    def _go_on(self) -> None:
        while True:
            for _ in range(self._random.randint(1, self._most_steps)):
                self._steps.acquire()
            if self._over.wait(self._random.uniform(0, _DELAY_SECONDS)):
                return
            name = self._random.choice(KILLS)
            try:
                FAULTS[name](self._target, self._random.uniform(*_FAULT_SECONDS), self._random)
            except NodeError as error:
                self._done.violations.append(f"after {name}: {error}")
                return
            self._done.faults[name] += 1
            self._calm_since = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._steps.release(self._most_steps)
        self._thread.join()


def _each(numbers: range, work: Callable[[int], None], kills: _Kills) -> None:
    def step(number: int) -> None:
        _until_done(lambda: work(number), kills)
        kills.step()

    with ThreadPoolExecutor(WIDTH) as pool:
        list(pool.map(step, numbers))


def _until_done(step: Callable[[], None], kills: _Kills) -> None:
    while True:
        try:
            return step()
        except grpc.RpcError:
            if kills.calm_seconds() > SETTLE_SECONDS:
                raise
            time.sleep(_AGAIN_SECONDS)


def _run(cri: Cri, number: int) -> None:
    port = pb.PortMapping(container_port=80, host_port=_FIRST_PORT + number)
    request = pb.RunPodSandboxRequest(config=pod_config(f"stress-{number}", port_mappings=[port]))
    cri.runtime.RunPodSandbox(request, timeout=_CALL_SECONDS)


def _remove(cri: Cri, number: int) -> None:
    selected = pb.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": f"uid-stress-{number}"})
    listed = cri.runtime.ListPodSandbox(pb.ListPodSandboxRequest(filter=selected), timeout=_CALL_SECONDS).items
    for sandbox in listed:
        cri.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox.id), timeout=_CALL_SECONDS)
        cri.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id), timeout=_CALL_SECONDS)


def _lose_everything(target: Target) -> None:
    target.server.kill()
    for path in target.dirs.state.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for row in target.engine.api.containers(all=True, quiet=True):
        try:
            target.engine.api.remove_container(row["Id"], force=True)
        except docker.errors.NotFound:
            continue
    target.start_server()


def _left(target: Target) -> list[str]:
    """Return leftovers of pods on the node, and daemons that exited by themselves."""
    daemons = {"server": target.server.daemon, "dockerd": target.engine.daemon}
    if ended := [f"{name} has ended: {daemon.log_tail()}" for name, daemon in daemons.items() if not daemon.running]:
        return ended
    containers = [row["Id"] for row in target.engine.api.containers(all=True, quiet=True)]
    checkpoints = [path.name for path in (target.dirs.state / "sandboxes").glob("*")]
    leases = [path.name for path in target.dirs.cni_leases.glob("*/*") if path.name[:1].isdigit() or ":" in path.name]
    results = [path.name for path in (target.dirs.cni_cache / "results").glob("*")]
    pins = [path.name for path in target.dirs.netns.glob("*")]
    links = [path.name for path in Path(f"/sys/class/net/{BRIDGE}/brif").glob("*")]
    rules = [
        f"{command}: {line}"
        for command in ("iptables", "ip6tables")
        for line in nat_rules(command).splitlines()
        if f'name: \\"{_NETWORK}\\"' in line or "CNI-DN-" in line
    ]
    kinds = {
        "container": containers,
        "checkpoint": checkpoints,
        "reservation": leases,
        "cni result": results,
        "pin": pins,
        "interface": links,
        "rule": rules,
    }
    return [f"{kind} over: {name}" for kind, names in kinds.items() for name in names]


def _kept(target: Target) -> Path:
    """Copy the logs, with the stack of each server thread appended, to a directory that survives the run."""
    kept = Path(tempfile.mkdtemp(prefix="pydockershim-stress-", dir="/var/tmp"))
    if target.server.daemon.running:
        target.server.daemon.signal(signal.SIGABRT)
        target.server.daemon.wait_ended(_CALL_SECONDS)
    shutil.copy(target.server.daemon.log, kept / "server.log")
    shutil.copy(target.engine.log, kept / "dockerd.log")
    return kept
