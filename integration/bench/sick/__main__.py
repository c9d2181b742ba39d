"""Measure how a failing or busy part of the node affects the rest.

The exit status says whether the measurement succeeded.
"""

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
from integration.bench.sick.restarts import ANSWER_SECONDS, PendingCalls, floor, restarted
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

PENDING_EXECS = 50
"""Execs that run while the server is restarted."""
EXEC_CONTAINERS = 20
"""Containers over which the execs are spread."""
_BEGIN_SECONDS = 3.0
"""Pause between the last exec and the signal, so that Docker has begun the execs."""
_BLOCKED_SECONDS = 30.0
_MADE = "bench/slow:1"
_LAYER_BYTES = 32 << 20
_PULLED_BYTES = 1 << 20
"""Pulls stall after this many bytes: more than the manifest and the configuration, less than the layer."""


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
    """Restart servers with `pods` pods, then read while stops and execs are pending.

    Raises NodeError if setup fails.
    """
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
        with step(f"reads during {wanted.stops} stops and {wanted.execs} execs"):
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
        with PendingCalls(server.socket) as pending:
            slow.begin(pending)
            pending.stop(containers[number])
            pending.execs(_spread(containers, PENDING_EXECS))
            time.sleep(_BEGIN_SECONDS)
            pending.check()
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
    """Return the containers of `count` execs."""
    some = containers[-EXEC_CONTAINERS:]
    return [some[number % len(some)] for number in range(count)]


def _rounds(name: str, server: Server, restart: Callable[[int], Restart], rounds: int) -> list[Restart]:
    """Restart `rounds` times, or until a server does not answer."""
    made: list[Restart] = []
    for number in range(rounds):
        with step(f"{name}, restart {number + 1} of {rounds}"):
            made.append(restart(number))
        if max(made[-1].answers.values()) >= ANSWER_SECONDS:
            print(f"    no answer within {ANSWER_SECONDS:g} s\n{server.daemon.log_tail()}", flush=True)
            break
    return made


class _SlowPull:
    """An image whose pull stalls in its layer."""

    def __init__(self, reference: str, proxy: Proxy) -> None:
        self.reference = reference
        self._proxy = proxy

    def begin(self, pending: PendingCalls) -> None:
        """Pull the image, and return when Docker waits for more data."""
        self._proxy.allow(_PULLED_BYTES)
        pending.pull(self.reference)
        self._proxy.wait_blocked(timeout=_BLOCKED_SECONDS)


@contextmanager
def _slow_pull(setup: Setup) -> Iterator[_SlowPull]:
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs only in isolation: make bench-sick")
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
    parser.add_argument("--stops", type=int, default=600, help="number of containers being stopped (%(default)s)")
    parser.add_argument("--execs", type=int, default=200, help="number of pending execs (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
