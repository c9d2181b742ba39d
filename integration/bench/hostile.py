"""What hostile exec sessions take from the server: `python -m integration.bench.hostile` in a box.

For each attack of `integration.attacks`, from another process: the growth of the server's resident memory a session,
and the longest call of a client that asks for the version all the time, beside its longest while the attackers send to
nothing. The difference is how long the sessions stop the server's other threads. And how much longer an RPC takes that
has to wait for a client of events that reads nothing.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc

from integration.attacks import ATTACKS, COMMAND, SINK
from integration.bench.setup import ENGINES, prepared, serving
from integration.bench.streaming import MIB, Bar, print_bars
from integration.cri import Cri, container_config, pod_config
from integration.node.commands import NodeError
from integration.node.images import BUSYBOX
from integration.server import Server
from integration.sessions import exec_url
from shim.api.v1 import api_pb2 as pb
from shim.api.v1.api_pb2_grpc import RuntimeServiceStub
from tests.cri.event_order import LARGE, channel

SESSION_MIB = 8
STALL_MS = 50
SERVER_MIB = 200
EVENTS_MS = 150
"""The server waits 100 ms for such a client, and then drops it."""
_MANY = 10
_CREATED = 30
"""Containers whose events fill what a client that reads nothing takes."""
_PAUSE_SECONDS = 0.002
"""Between two calls of the client beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one attack by some sessions."""

    grown: float
    """Resident memory of the server, MiB a session."""
    peak: float
    """The server's largest resident memory, MiB."""
    calls: Sequence[float]
    """Times of the calls beside, ms."""

    @property
    def longest(self) -> float:
        """Longest call, ms."""
        return max(self.calls)


def measure(engine_name: str, attacks: Sequence[str], *, seconds: float) -> list[Bar]:
    """Measure some attacks, by one session and by ten at once. NodeError when it cannot be set up."""
    with prepared(engine_name) as setup, serving(setup) as (server, cri):
        config = pod_config("hostile")
        sandbox = cri.run(config)
        container = cri.create(sandbox, container_config("box", image=BUSYBOX), pod=config)
        cri.start(container)
        bars = [bar for name in attacks for bar in _bars(name, cri, server, container, seconds=seconds)]
        return [*bars, _event_bar(server, lambda: cri.remove_container(cri.create(sandbox, _large(), pod=config)))]


def _large() -> pb.ContainerConfig:
    return container_config(f"large-{time.monotonic_ns()}", image=BUSYBOX, annotations=LARGE)


def _event_bar(server: Server, create_and_remove: Callable[[], object]) -> Bar:
    """Time creations and removals beside a client of events that reads nothing, and without it."""
    floor = _longest(create_and_remove)
    with channel(server.socket) as connection:
        stream = RuntimeServiceStub(connection).GetContainerEvents(pb.GetEventsRequest())
        longest = _longest(create_and_remove)
        try:
            for _ in stream:
                pass
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
    print(f"events unread: longest creation and removal {longest:.1f} ms, without that client {floor:.1f} ms")
    return Bar("events unread by a client: wait of an RPC", max(longest - floor, 0.0), "ms", EVENTS_MS, at_most=True)


def _longest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_CREATED):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return max(times)


def _bars(name: str, cri: Cri, server: Server, container: str, *, seconds: float) -> Iterator[Bar]:
    for sessions in (1, _MANY):
        floor = _cost(name, [SINK] * sessions, cri, server, seconds=seconds)
        urls = [exec_url(cri, container, *COMMAND) for _ in range(sessions)]
        cost = _cost(name, urls, cri, server, seconds=seconds)
        stall = max(cost.longest - floor.longest, 0.0)
        median = statistics.median(cost.calls)
        print(
            f"{name}, {sessions}: {len(cost.calls)} calls, median {median:.1f}, longest {cost.longest:.1f} ms; "
            f"without the server {floor.longest:.1f} ms"
        )
        yield Bar(f"{name}, {sessions} sessions: memory of each", cost.grown, "MiB", SESSION_MIB, at_most=True)
        yield Bar(f"{name}, {sessions} sessions: stall of a call", stall, "ms", STALL_MS, at_most=True)
        yield Bar(f"{name}, {sessions} sessions: server", cost.peak, "MiB", SERVER_MIB, at_most=True)


def _cost(name: str, urls: Sequence[str], cri: Cri, server: Server, *, seconds: float) -> Cost:
    before = server.rss()
    server.forget_peak()
    calls = []
    with _attackers(name, urls, seconds=seconds) as attackers:
        while attackers.poll() is None:
            began = time.perf_counter()
            cri.runtime.Version(pb.VersionRequest())
            calls.append((time.perf_counter() - began) * 1000)
            time.sleep(_PAUSE_SECONDS)
    if attackers.returncode:
        raise NodeError(f"the attackers ended with exit status {attackers.returncode}")
    peak = server.peak_rss()
    return Cost(grown=(peak - before) / MIB / len(urls), peak=peak / MIB, calls=calls)


@contextmanager
def _attackers(name: str, urls: Sequence[str], *, seconds: float) -> "Iterator[subprocess.Popen[str]]":
    """Start the attackers, and wait until their commands run: what Docker takes to begin them is not theirs."""
    command = [sys.executable, "-m", "integration.attacks", name, str(seconds), *urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attackers:
        try:
            assert attackers.stdout is not None
            attackers.stdout.readline()
            yield attackers
        finally:
            attackers.kill()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.hostile", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--only", choices=ATTACKS, nargs="*", default=list(ATTACKS), help="attacks (all)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, arguments.only, seconds=arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
