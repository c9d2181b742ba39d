"""Processor time and memory of the server's processes, for a pod's life and on an idle node.

`python -m integration.node run --disk python -m integration.bench.cpu`. Unlike latency, processor time hardly depends
on other work on the machine, but much on the machine itself. So `--before DIR` measures the server of another checkout
in turn, with the libraries of this checkout. Docker and CNI plugins are not counted.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from integration.bench.figures import Bar, bar_of
from integration.bench.machine import docker, machine
from integration.bench.pods import ordinary_pod
from integration.bench.processor_time import own_seconds, parent_of
from integration.bench.report import Docker, Machine
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.timed_pod import PodClient, TimedPod
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import NodeError, step
from integration.server import Server
from shim.api.v1 import api_pb2 as pb

AT_ONCE = 4
"""Pods added or removed at the same time."""
EXECS = 3
"""Execs in each pod after its start."""
PROBE_SECONDS = 10
"""Seconds between two execs in a pod while the node is idle: a probe's default interval."""
_SETTLE_SECONDS = 2.0
"""Pause before a measurement, so that work after a reply, such as the end of a burst of events, is done."""

_PROCESSES = {"shim.logs.worker": "log process", "shim.hostfs.worker": "helper"}
_SERVER = "server"
_COUNTED = (_SERVER, "log process")
"""Processes that the bars count."""

POD_LIMIT_MS = 40.0
"""Half of the value that was measured when the bar was set, on the machine of that time."""
TURNS = 4
"""Turns of each of two servers that are compared."""
IDLE_LIMIT_SECONDS = 0.75
"""Processor time in PROBE_SECONDS, with a probe in each of 100 pods."""
PSS_LIMIT_MIB = 85.0

T = TypeVar("T")

Of = Mapping[str, float]
"""A figure for each process by its name."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run, by process."""

    machine: Machine
    engine: Docker
    pods: int
    up_ms: Of
    """Processor time for each pod, from RunPodSandbox to the last ExecSync."""
    down_ms: Of
    """Processor time for each pod, from StopContainer to RemovePodSandbox."""
    idle_seconds: Of
    """Processor time in PROBE_SECONDS, with a probe in each pod and two lists a second."""
    before_mib: Of
    """PSS before the first pod."""
    present_mib: Of
    """PSS with all pods, at the end of the idle time."""

    @property
    def bars(self) -> list[Bar]:
        """The figures compared with the promised limits."""
        pod = _counted(self.up_ms) + _counted(self.down_ms)
        return [
            bar_of("processor time a pod", unit="ms", limit=POD_LIMIT_MS, value=pod),
            bar_of(
                f"idle for {PROBE_SECONDS} s, {self.pods} probes",
                unit="s",
                limit=IDLE_LIMIT_SECONDS * self.pods / 100,
                value=_counted(self.idle_seconds),
            ),
            bar_of(f"PSS, {self.pods} pods", unit="MiB", limit=PSS_LIMIT_MIB, value=_counted(self.present_mib)),
        ]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two servers in turn: processor time for each pod, in milliseconds."""

    machine: Machine
    engine: Docker
    pods: int
    """Pods of each turn."""
    before_ms: list[float]
    now_ms: list[float]

    @property
    def ratio(self) -> float:
        """Median over the turns."""
        return statistics.median(now / before for before, now in zip(self.before_ms, self.now_ms, strict=True))


def main() -> int:
    """Measure, print the table and write the JSON."""
    arguments = _parser().parse_args()
    report: Report | Comparison
    try:
        if arguments.before is not None:
            report = compare(arguments.engine, before=arguments.before, pods=arguments.pods)
            table = comparison_table(report)
        else:
            report = measure(arguments.engine, pods=arguments.pods, idle_seconds=arguments.seconds)
            table = as_table(report)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    print(f"\n{table}")
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0


def measure(engine_name: str, *, pods: int, idle_seconds: int) -> Report:
    """Measure `pods` pods, and then the idle node for `idle_seconds`. Raises NodeError if setup fails."""
    load_before = os.getloadavg()[0]
    with prepared(engine_name) as setup, serving(setup) as (server, cri):
        client, logs = PodClient(cri), str(setup.logs)
        client.down(Timings(), _up(client, cri, "warm-up", logs=logs))  # the first pod fills caches
        before_mib = _figures(server, _pss_mib)
        with step(f"{pods} pods up"):
            made, up = _spent(server, lambda: _all_up(client, cri, count=pods, logs=logs))
        with step(f"idle for {idle_seconds} s"):
            _, idle = _spent(server, lambda: _idle(cri, made, seconds=idle_seconds))
        present_mib = _figures(server, _pss_mib)
        with step(f"{pods} pods down"):
            _, down = _spent(server, lambda: _all_down(client, made))
        return Report(
            machine=machine(load_before),
            engine=docker(setup.engine),
            pods=pods,
            up_ms={name: 1000 * seconds / pods for name, seconds in up.items()},
            down_ms={name: 1000 * seconds / pods for name, seconds in down.items()},
            idle_seconds={name: seconds * PROBE_SECONDS / idle_seconds for name, seconds in idle.items()},
            before_mib=before_mib,
            present_mib=present_mib,
        )


def compare(engine_name: str, *, before: Path, pods: int) -> Comparison:
    """Measure `pods` pods on each server, in TURNS turns. Raises NodeError if setup fails."""
    if not (before / "shim" / "__main__.py").is_file():
        raise NodeError(f"--before {before}: not a checkout of this repository")
    load_before = os.getloadavg()[0]
    each = max(1, pods // TURNS)
    turns: dict[Path | None, list[float]] = {before.absolute(): [], None: []}
    with prepared(engine_name) as setup:
        for turn in range(TURNS):
            for checkout in (before.absolute(), None) if turn % 2 == 0 else (None, before.absolute()):
                with step(f"turn {turn + 1}, {checkout or 'this checkout'}"):
                    turns[checkout].append(_pod_ms(setup, checkout=checkout, pods=each))
        earlier, now = turns.values()
        return Comparison(
            machine=machine(load_before), engine=docker(setup.engine), pods=each, before_ms=earlier, now_ms=now
        )


def _pod_ms(setup: Setup, *, checkout: Path | None, pods: int) -> float:
    """Return the processor time of a pod's whole life, in milliseconds."""
    with serving(setup, checkout=checkout) as (server, cri):
        client, logs = PodClient(cri), str(setup.logs)
        client.down(Timings(), _up(client, cri, "warm-up", logs=logs))
        made, up = _spent(server, lambda: _all_up(client, cri, count=pods, logs=logs))
        _, down = _spent(server, lambda: _all_down(client, made))
        return 1000 * (_counted(up) + _counted(down)) / pods


def comparison_table(report: Comparison) -> str:
    """Return the comparison as text."""
    turns = zip(report.before_ms, report.now_ms, strict=True)
    return "\n".join(
        [
            *_heading(report.engine, report.machine),
            f"{report.pods} pods a turn",
            "",
            f"{'':20}{'before':>14}{'now':>14}{'ratio':>14}",
            *(
                f"{f'ms a pod, turn {number}':20}{before:14.2f}{now:14.2f}{now / before:14.2f}"
                for number, (before, now) in enumerate(turns, 1)
            ),
            "",
            f"processor time a pod: {report.ratio:.2f} of before, median of the turns",
        ]
    )


def as_table(report: Report) -> str:
    """Return the report as text."""
    rows = {
        "ms a pod, up": report.up_ms,
        "ms a pod, down": report.down_ms,
        f"s in {PROBE_SECONDS} s idle": report.idle_seconds,
        "MiB before": report.before_mib,
        "MiB with pods": report.present_mib,
    }
    return "\n".join(
        [
            *_heading(report.engine, report.machine),
            f"{report.pods} pods",
            "",
            f"{'':20}" + "".join(f"{name:>14}" for name in report.up_ms),
            *(f"{what:20}" + "".join(f"{value:14.2f}" for value in row.values()) for what, row in rows.items()),
            "",
            *map(_bar_line, report.bars),
        ]
    )


def _heading(engine: Docker, found: Machine) -> list[str]:
    return [
        f"Docker Engine {engine.version}; {found.cpus} CPUs, Python {found.python}",
        f"load {found.load_before:.1f} before and {found.load_after:.1f} after",
    ]


def _bar_line(bar: Bar) -> str:
    return f"{bar.name:32}{bar.value:9.2f} of {bar.limit:.2f} {bar.unit:9}{'met' if bar.met else 'MISSED'}"


def _up(client: PodClient, cri: Cri, name: str, *, logs: str) -> TimedPod:
    config, container = ordinary_pod(name, logs=logs)
    pod = client.up(Timings(), config=config, container=container)
    for _ in range(EXECS):
        cri.exec(pod.container, "true")
    return pod


def _all_up(client: PodClient, cri: Cri, *, count: int, logs: str) -> list[TimedPod]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda number: _up(client, cri, f"cpu-{number}", logs=logs), range(count)))


def _all_down(client: PodClient, pods: Sequence[TimedPod]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda pod: client.down(Timings(), pod), pods))


def _idle(cri: Cri, pods: Sequence[TimedPod], *, seconds: int) -> None:
    """Poll as a kubelet does, and run each pod's probe once in PROBE_SECONDS, evenly spread."""
    stopped = threading.Event()
    reading = threading.Thread(target=_read, args=(cri, stopped))
    reading.start()
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            began, gap = time.monotonic(), PROBE_SECONDS / len(pods)
            for number in range(len(pods) * seconds // PROBE_SECONDS):
                time.sleep(max(0.0, began + number * gap - time.monotonic()))
                pool.submit(cri.exec, pods[number % len(pods)].container, "true").result()
            time.sleep(max(0.0, began + seconds - time.monotonic()))
    finally:
        stopped.set()
        reading.join()


def _read(cri: Cri, stopped: threading.Event) -> None:
    while not stopped.wait(1):
        cri.sandboxes()
        cri.containers()
        cri.runtime.Status(pb.StatusRequest())


def _spent(server: Server, work: Callable[[], T]) -> tuple[T, Of]:
    """Return the result of `work` and the processor seconds that each process spent on it."""
    before = _figures(server, _cpu_seconds)
    result = work()
    time.sleep(_SETTLE_SECONDS)
    after = _figures(server, _cpu_seconds)
    return result, {name: after[name] - before[name] for name in before}


def _figures(server: Server, figure: Callable[[Path], float]) -> Of:
    found = {_SERVER: figure(Path("/proc", str(server.daemon.pid)))}
    for proc in Path("/proc").glob("[0-9]*"):
        if (name := _child_name(proc, parent=server.daemon.pid)) is not None:
            found[name] = figure(proc)
    return found


def _child_name(proc: Path, *, parent: int) -> str | None:
    """Return the name of a child process of the server; None for other and for exited processes."""
    try:
        if parent_of(int(proc.name)) != parent:
            return None
        words = (proc / "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((name for module, name in _PROCESSES.items() if module in words), None)


def _cpu_seconds(proc: Path) -> float:
    return own_seconds(int(proc.name))


def _pss_mib(proc: Path) -> float:
    lines = (proc / "smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _counted(of: Of) -> float:
    return sum(of[name] for name in _COUNTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench.cpu", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--pods", type=int, default=100, help="number of pods (%(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="duration of the idle phase (%(default)s)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="checkout whose server is compared with this one's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
