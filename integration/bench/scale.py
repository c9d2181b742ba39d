"""A growing node: `python -m integration.bench.scale`, in isolation.

The node has more pods at each step, with two running containers each. The last step adds stopped containers of other
users of the same Docker. At each step the server is restarted, then asked for a while as a kubelet asks, with exec
probes. A containerd, if given, gets the same pods and the same calls in turn; it is not restarted.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import msgspec

from integration.bench.figures import ranked
from integration.bench.load import AT_ONCE
from integration.bench.pods import pod_of_many
from integration.bench.processor_time import own_seconds
from integration.bench.rivals import Rival, running
from integration.bench.scale_figures import EXEC, READS, Step, as_table, drawn
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import NodeError, step
from integration.node.images import BUSYBOX
from integration.server import Server, resident_bytes
from shim.api.v1 import api_pb2 as pb

CONTAINERS = 2
"""Containers of each pod."""
PROBES_PER_MINUTE = 1000


Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Subject:
    """A server with its containers."""

    name: str
    cri: Cri
    pod: str
    """Prefix of the names of its pods."""
    process: Callable[[], int]
    """Its pid."""
    own: Server | None = None
    """The server of this project, which is restarted at each step."""
    containers: list[str] = field(default_factory=list)


def measure(
    engine_name: str, *, sizes: Sequence[int], foreign: int, seconds: float, containerd: Path | None = None
) -> Iterator[Step]:
    """Yield the figures of each size, and at last with `foreign` stopped containers. Raise NodeError if setup fails."""
    with ExitStack() as stack:
        setup = stack.enter_context(prepared(engine_name))
        server, cri = stack.enter_context(serving(setup))
        subjects = [_Subject("pydockershim", cri, "scale", lambda: server.daemon.pid, own=server)]
        if containerd is not None:
            subjects.append(_rival(stack.enter_context(running(setup, containerd, number=0))))
        for size in sizes:
            for each in subjects:
                have = len(each.containers) // CONTAINERS
                with step(f"{size} pods of {each.name}"):
                    each.containers.extend(_pods_up(setup, each, range(have, size)))
                yield _measured(each, foreign=0, seconds=seconds)
        if foreign:
            with step(f"{foreign} stopped containers of others"):
                _make_foreign(setup, foreign)  # they end with their engine
            yield _measured(subjects[0], foreign=foreign, seconds=seconds)


def _rival(rival: Rival) -> _Subject:
    return _Subject(rival.name, rival.cri, "beside", lambda: rival.pid)


def _pods_up(setup: Setup, subject: _Subject, numbers: Sequence[int]) -> list[str]:
    cri = subject.cri

    def up(number: int) -> list[str]:
        name = f"{subject.pod}-{number}"
        config, containers = pod_of_many(name, size=CONTAINERS, pid=pb.CONTAINER, logs=str(setup.logs))
        for each in containers:
            Path(config.log_directory, each.log_path).parent.mkdir(parents=True, exist_ok=True)
        sandbox = cri.run(config)
        made = [cri.create(sandbox, each, pod=config) for each in containers]
        for container in made:
            cri.start(container)
        return made

    return [container for made in _each(up, numbers) for container in made]


def _make_foreign(setup: Setup, count: int) -> None:
    api = setup.engine.api

    def make(number: int) -> None:
        config = api.create_host_config(network_mode="none")
        api.create_container(BUSYBOX, ["true"], name=f"someone-{number}", host_config=config)

    _each(make, range(count))


def _each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def _measured(subject: _Subject, *, foreign: int, seconds: float) -> Step:
    start_seconds = None
    if subject.own is not None:
        start_seconds = _restarted(subject.own, subject.cri, count=len(subject.containers))
        subject.own.wait_idle()
    process = subject.process()
    timings, before, began = Timings(), own_seconds(process), time.monotonic()
    with step(f"{seconds:g} s of a kubelet's calls to {subject.name}"):
        _kubelet(subject.cri, timings, subject.containers, seconds=seconds)
    used = (own_seconds(process) - before) / (time.monotonic() - began)
    return Step(
        server=subject.name,
        pods=len(subject.containers) // CONTAINERS,
        foreign=foreign,
        start_seconds=start_seconds,
        rss_mib=resident_bytes(process) / (1 << 20),
        core_percent=100 * used,
        took_ms={name: (statistics.median(took), ranked(took, 0.99)) for name, took in timings.took.items()},
    )


def _restarted(server: Server, cri: Cri, *, count: int) -> float:
    server.stop()
    began = time.monotonic()
    server.start()
    if len(cri.containers()) != count:
        raise NodeError(f"the first list does not have {count} containers")
    return time.monotonic() - began


def _kubelet(cri: Cri, timings: Timings, containers: Sequence[str], *, seconds: float) -> None:
    """Probe and read at a kubelet's pace."""
    pace, due, until = 60 / PROBES_PER_MINUTE, time.monotonic(), time.monotonic() + seconds
    probed, second = cycle(containers), 0.0
    while due < until:
        container = next(probed)
        timings.call(EXEC, lambda: cri.exec(container, "true"))  # noqa: B023 - called at once
        if due >= second:
            second = due + 1
            _reads(cri, timings, container)
        due += pace
        time.sleep(max(0.0, due - time.monotonic()))


def _reads(cri: Cri, timings: Timings, container: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        cri.containers,
        cri.sandboxes,
        lambda: cri.container_status(container),
        lambda: cri.runtime.ListContainerStats(pb.ListContainerStatsRequest()),
    )
    for name, call in zip(READS, calls, strict=True):
        timings.call(name, call)


def main() -> int:
    """Measure, and print a table; times are medians and 99th percentiles."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.scale", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--pods", type=int, nargs="+", default=[10, 50, 110, 250], help="sizes (%(default)s)")
    parser.add_argument("--foreign", type=int, default=10_000, help="stopped containers of others (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="time of a kubelet's calls (%(default)s)")
    parser.add_argument("--beside", type=Path, help="measure this containerd too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the figures as SVG")
    given = parser.parse_args()
    steps = []
    try:
        for each in measure(
            given.engine,
            sizes=given.pods,
            foreign=given.foreign,
            seconds=given.seconds,
            containerd=given.beside,
        ):
            steps.append(each)
            print(f"\n{as_table(steps)}\n", flush=True)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(steps)))
    if given.picture is not None:
        cpus = len(os.sched_getaffinity(0))
        own = [each for each in steps if each.start_seconds is not None]
        below = f"{cpus} processors, by number of pods; orange: with {given.foreign:,} stopped containers of others"
        given.picture.write_text(drawn(own, head=f"A growing node, Docker Engine {given.engine}", below=below))
    return 0


if __name__ == "__main__":
    sys.exit(main())
