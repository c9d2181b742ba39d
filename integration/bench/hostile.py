"""What hostile exec sessions cost the server: `python -m integration.bench.hostile`, in isolation.

Each attack of `integration.attacks` runs in another process. Measured are the growth of the server's resident memory
for each session, and the stall: the longest call of a client that polls Version, minus its longest call while the
attackers send to a sink. The stall is how long the sessions stop the server's other threads. Also measured is the delay
of an RPC that must wait for a subscriber of events that reads nothing.
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
"""The server waits 100 ms for such a subscriber, and then drops it."""
_MANY = 10
_CREATED = 30
"""Containers whose events fill the buffers of a subscriber that reads nothing."""
_PAUSE_SECONDS = 0.002
"""Pause between two calls of the polling client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of an attack by some sessions."""

    grown: float
    """Growth of the server's resident memory for each session, in MiB."""
    peak: float
    """Peak of the server's resident memory, in MiB."""
    calls: Sequence[float]
    """Durations of the polling client's calls, in ms."""

    @property
    def longest(self) -> float:
        """Longest call, in ms."""
        return max(self.calls)


def measure(engine_name: str, attacks: Sequence[str], *, seconds: float) -> list[Bar]:
    """Measure some attacks, with one session and with ten. Raises NodeError if setup fails."""
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
    """Time creations and removals with and without a subscriber of events that reads nothing."""
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
    print(f"unread events: longest creation and removal {longest:.1f} ms, without the subscriber {floor:.1f} ms")
    return Bar("unread events: delay of an RPC", max(longest - floor, 0.0), "ms", EVENTS_MS, at_most=True)


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
    """Start the attackers, and wait until their commands run, so that the time of Docker's exec is not counted."""
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
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each attack (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, arguments.only, seconds=arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
