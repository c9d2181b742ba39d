"""The cost of stats and metrics with many pods: latency, calls to Docker, CPU of the server and of dockerd.

`python -m integration.bench.stats`, in isolation. The exit status says whether the measurement succeeded, not how fast
the server is.
"""

import argparse
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from prometheus_client.parser import text_string_to_metric_families

from integration.bench.figures import ranked
from integration.bench.machine import footprint
from integration.bench.pods import COMMAND
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.cri import Cri, container_config, pod_config
from integration.node.commands import NodeError, step
from integration.node.images import BUSYBOX
from integration.node.isolation import this_node
from integration.server import Server
from shim.api.v1 import api_pb2 as pb
from shim.stats_cache import METRICS_INTERVAL, PREFETCH_SECONDS

AT_ONCE = 8
"""Pods added or removed at the same time."""
CONTAINERS = 2
"""Containers of each pod."""
METRICS_PORT = 9180
POLL_SECONDS = 10.0
"""Seconds between two polls of all stats, as by the kubelet."""
ASKED = 5
"""Timed answers of each kind, each the first after a pass of the sampler."""
PAUSE_SECONDS = 3.0
"""Pause between two pairs."""
PAIRS = 5
"""Pairs of requests, one second apart, from a client that has been silent for a while."""
LIMITS_US = {"ListContainerStats": 50, "ListPodSandboxStats": 50, "ListPodSandboxMetrics": 250}
"""Bounds for each container, in microseconds."""
LIMIT_SHARE = 0.0001
"""Bound on the share of a core that polling all three costs for each container."""

_OF_THE_VIEW = ("list_containers", "list_images", "inspect_image", "events")
"""Calls that the node view makes once a minute, independent of clients."""


@dataclass(frozen=True, slots=True)
class Times:
    """Latency of an RPC, in milliseconds."""

    median: float
    worst: float
    """95th percentile."""
    second: float
    """Median of the second request of a pair."""


def main() -> int:
    """Measure, and print the figures."""
    arguments = _parser().parse_args()
    try:
        with (
            prepared(arguments.engine) as setup,
            serving(setup, checkout=arguments.checkout, metrics_bind_addr=METRICS_PORT) as (server, cri),
        ):
            _measure(setup, server, cri, pods=arguments.pods, polls=arguments.polls)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    return 0


def _measure(setup: Setup, server: Server, cri: Cri, *, pods: int, polls: int) -> None:
    with step(f"{pods // 2} pods up"):
        _up(setup, cri, first=0, last=pods // 2)
    half = _times(cri)
    with step(f"{pods} pods up"):
        _up(setup, cri, first=pods // 2, last=pods)
    asked_before = _docker_calls()
    whole = _times(cri)
    asked = {name: count - asked_before.get(name, 0) for name, count in _docker_calls().items()}
    with step("no client asks"):
        time.sleep(PREFETCH_SECONDS)
        idle = _cpu_shares(setup, server, seconds=POLL_SECONDS * 2, poll=lambda: None)
    with step(f"{polls} polls"):
        polled = _cpu_shares(setup, server, seconds=POLL_SECONDS * polls, poll=lambda: _poll(cri))
    containers = pods * CONTAINERS
    print(f"\n{pods} pods of {CONTAINERS} containers\n")
    print(f"{'':24}{'half':>10}{'all':>10}{'p95':>10}{'bar':>10}{'second':>10}   ms")
    for name, of_container in LIMITS_US.items():
        times, limit = whole[name], of_container * containers / 1000
        verdict = "met" if times.median <= limit else "MISSED"
        figures = (half[name].median, times.median, times.worst, limit, times.second)
        print(f"{name:24}{''.join(f'{figure:10.1f}' for figure in figures)}   {verdict}")
    print(f"\ncalls to Docker meanwhile: {sum(n for name, n in asked.items() if name not in _OF_THE_VIEW):.0f}")
    share = LIMIT_SHARE * containers
    verdict = "met" if polled[0] <= share else "MISSED"
    print(f"{'':24}{'idle':>10}{'polled':>10}{'bar':>10}   % of a core")
    print(f"{'server':24}{idle[0] * 100:10.2f}{polled[0] * 100:10.2f}{share * 100:10.2f}   {verdict}")
    print(f"{'dockerd':24}{idle[1] * 100:10.2f}{polled[1] * 100:10.2f}")


def _up(setup: Setup, cri: Cri, *, first: int, last: int) -> None:
    node = this_node()
    parent = node.cgroup_parent.rstrip("/") if node else ""

    def up(number: int) -> None:
        linux = pb.LinuxPodSandboxConfig(cgroup_parent=f"{parent}/stats-{number}")
        config = pod_config(f"stats-{number}", log_directory=f"{setup.logs}/stats-{number}", linux=linux)
        sandbox = cri.run(config)
        for container in range(CONTAINERS):
            name = f"c{container}"
            made = container_config(name, image=BUSYBOX, command=COMMAND, log_path=f"{name}/0.log")
            cri.start(cri.create(sandbox, made, pod=config))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(up, range(first, last)))


def _asks(cri: Cri) -> dict[str, Callable[[], object]]:
    runtime = cri.runtime
    return {
        "ListContainerStats": lambda: runtime.ListContainerStats(pb.ListContainerStatsRequest()),
        "ListPodSandboxStats": lambda: runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest()),
        "ListPodSandboxMetrics": lambda: runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest()),
    }


def _poll(cri: Cri) -> None:
    for ask in _asks(cri).values():
        ask()


def _times(cri: Cri) -> dict[str, Times]:
    _poll(cri)
    # From now on the server samples ahead; the first results exist after the next pass.
    time.sleep(METRICS_INTERVAL)
    took = []
    for _ in range(ASKED):
        took.append(_timed(cri))
        time.sleep(METRICS_INTERVAL)
    second = []
    for _ in range(PAIRS):
        time.sleep(PAUSE_SECONDS)
        _poll(cri)
        time.sleep(1)
        second.append(_timed(cri))
    found = {}
    for name in LIMITS_US:
        times = [each[name] for each in took]
        found[name] = Times(median(times), ranked(times, 0.95), median(each[name] for each in second))
    return found


def _timed(cri: Cri) -> dict[str, float]:
    """Request everything; return the milliseconds of each request."""
    took = {}
    for name, ask in _asks(cri).items():
        began = time.perf_counter()
        ask()
        took[name] = (time.perf_counter() - began) * 1000
    return took


def _cpu_shares(setup: Setup, server: Server, *, seconds: float, poll: Callable[[], None]) -> tuple[float, float]:
    """Return the CPU time of the server and dockerd as shares of the elapsed time."""

    def used() -> tuple[float, float]:
        return footprint(server, when="").cpu_seconds, _cpu_seconds(setup.engine.daemon.pid)

    before, began = used(), time.monotonic()
    while time.monotonic() - began < seconds:
        poll()
        time.sleep(POLL_SECONDS)
    after, passed = used(), time.monotonic() - began
    return (after[0] - before[0]) / passed, (after[1] - before[1]) / passed


def _cpu_seconds(pid: int) -> float:
    # schedstat counts nanoseconds, stat only hundredths of a second.
    return (
        sum(int((task / "schedstat").read_text().split()[0]) for task in Path("/proc", str(pid), "task").iterdir())
        / 1e9
    )


def _docker_calls() -> dict[str, float]:
    """Return the number of calls to Docker by operation, from the server's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "pydockershim_docker_call_seconds_count":
            operation = sample.labels["operation"]
            found[operation] = found.get(operation, 0) + sample.value
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench.stats", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--pods", type=int, default=100, help="number of pods (%(default)s)")
    parser.add_argument(
        "--polls", type=int, default=6, help="number of polls for the CPU time, ten seconds apart (%(default)s)"
    )
    parser.add_argument("--checkout", type=_checkout, help="checkout of the server (this one)")
    return parser


def _checkout(text: str) -> Path:
    return Path(text).absolute()


if __name__ == "__main__":
    sys.exit(main())
