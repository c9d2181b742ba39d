"""Measure what a sick or busy part of the node takes from the rest. The exit status says whether that could be done."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.bench.machine import docker, machine
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.sick import figures
from integration.bench.sick.figures import Report, Restart, Restarts
from integration.bench.sick.node import containers_up, pods_down, pods_up
from integration.bench.sick.restarts import ANSWER_SECONDS, UnderWay, floor, restarted
from integration.bench.sick.waits import reads_beside_waits
from integration.node import images
from integration.node.commands import NodeError, step
from integration.node.fuse import HangingVolume
from integration.node.images import File, Image
from integration.node.isolation import this_node
from integration.node.registry import Registry
from integration.node.registry_proxy import Proxy
from integration.node.stuck import stuck_process
from integration.server import Server

EXECS_UNDER_WAY = 50
"""While a server is restarted."""
EXEC_CONTAINERS = 20
"""Over which execs are spread."""
_BEGIN_SECONDS = 3.0
"""From the last exec that was sent to the signal: Docker has begun them by then."""
_BLOCKED_SECONDS = 30.0
_MADE = "bench/slow:1"
_LAYER_BYTES = 32 << 20
_PULLED_BYTES = 1 << 20
"""After which pulls stand still: more than the manifest and the configuration have, less than the layer."""


def main() -> int:
    """Measure, print the table and write the JSON."""
    arguments = _parser().parse_args()
    try:
        report = measure(arguments)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    print(f"\n{figures.as_table(report)}")
    if arguments.json is not None:
        arguments.json.write_bytes(figures.as_json(report))
    return 0


def measure(wanted: argparse.Namespace) -> Report:
    """Restart servers among `pods` pods, then read while stops and execs wait. NodeError when it cannot be set up."""
    load_before = os.getloadavg()[0]
    with prepared(wanted.engine) as setup, serving(setup) as (server, cri), _slow_pull(setup) as slow:
        with step(f"{wanted.pods} pods, {wanted.pods * 2} containers up"):
            pods = pods_up(cri, setup, count=wanted.pods)
            containers = containers_up(cri, pods, first=0, count=wanted.pods * 2)
        restarts = _restarts(setup, server, containers, slow=slow, rounds=wanted.rounds)
        restart_floor = floor(setup.engine)
        with step(f"{wanted.stops - len(containers)} more containers up"):
            more = max(0, wanted.stops - len(containers))
            containers += containers_up(cri, pods, first=len(containers), count=more)
        with step(f"reads beside {wanted.stops} stops and {wanted.execs} execs"):
            executing = [
                containers[-1 - number % min(EXEC_CONTAINERS, len(containers))] for number in range(wanted.execs)
            ]
            stopped = containers[: wanted.stops]
            waits, reads = reads_beside_waits(server, setup.engine, stopped=stopped, executing=executing)
        with step("pods down"):
            pods_down(cri, pods)
        return Report(
            machine=machine(load_before),
            engine=docker(setup.engine),
            containers=wanted.pods * 3,
            restarts=restarts,
            restart_floor=restart_floor,
            waits=waits,
            reads=reads,
            bars=figures.bars(restarts=restarts, reads=reads, waits=waits),
        )


def _restarts(setup: Setup, server: Server, containers: list[str], *, slow: "_SlowPull", rounds: int) -> list[Restarts]:
    def ordered(number: int) -> Restart:
        with UnderWay(server.socket) as under_way:
            slow.begin(under_way)
            under_way.stop(containers[number])
            under_way.execs(_spread(containers, EXECS_UNDER_WAY))
            time.sleep(_BEGIN_SECONDS)
            under_way.check()
            return restarted(server, by=signal.SIGTERM)

    def crashed(_number: int) -> Restart:
        return restarted(server, by=signal.SIGKILL)

    kinds = [Restarts(name="SIGTERM", rounds=_rounds("SIGTERM", server, ordered, rounds))]
    kinds.append(Restarts(name="SIGKILL", rounds=_rounds("SIGKILL", server, crashed, rounds)))
    volume = HangingVolume(setup.home / "volume")
    try:
        with stuck_process(volume):
            name = "SIGKILL, a process hangs"
            kinds.append(Restarts(name=name, rounds=_rounds(name, server, crashed, rounds)))
    finally:
        volume.close()
    server.daemon.wait_ready(server.socket.exists, timeout=_BLOCKED_SECONDS)
    return kinds


def _spread(containers: Sequence[str], count: int) -> list[str]:
    """Choose where so many execs run."""
    some = containers[-EXEC_CONTAINERS:]
    return [some[number % len(some)] for number in range(count)]


def _rounds(name: str, server: Server, restart: Callable[[int], Restart], rounds: int) -> list[Restart]:
    """Restart again and again, up to the first time that the next server does not answer."""
    made: list[Restart] = []
    for number in range(rounds):
        with step(f"{name}, restart {number + 1} of {rounds}"):
            made.append(restart(number))
        if max(made[-1].answers.values()) >= ANSWER_SECONDS:
            print(f"    no answer within {ANSWER_SECONDS:g} s\n{server.daemon.log_tail()}", flush=True)
            break
    return made


class _SlowPull:
    """An image whose pull stands still in its layer."""

    def __init__(self, reference: str, proxy: Proxy) -> None:
        self.reference = reference
        self._proxy = proxy

    def begin(self, under_way: UnderWay) -> None:
        """Pull it, and return once Docker waits for more of it."""
        self._proxy.allow(_PULLED_BYTES)
        under_way.pull(self.reference)
        self._proxy.wait_blocked(timeout=_BLOCKED_SECONDS)


@contextmanager
def _slow_pull(setup: Setup) -> Iterator[_SlowPull]:
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs in isolation only: make bench-sick")
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=setup.home / "registry")
    registry.start()
    api = setup.engine.api
    images.load(api, Image(_MADE, (File("noise", os.urandom(_LAYER_BYTES)),)))
    pushed = registry.push(api, _MADE, name="bench/slow:1")
    api.remove_image(_MADE)
    proxy = Proxy(registry.address)
    try:
        yield _SlowPull(pushed.replace(registry.address, proxy.address), proxy)
    finally:
        proxy.close()
        registry.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench.sick", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--pods", type=int, default=100, help="pods of two containers at restarts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="restarts of each kind (%(default)s)")
    parser.add_argument("--stops", type=int, default=600, help="containers that are being stopped (%(default)s)")
    parser.add_argument("--execs", type=int, default=200, help="execs under way beside them (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go for programs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
