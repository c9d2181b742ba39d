"""The cost of copying logs: a container that floods, many containers that write a little, and memory of many logs.

`python -m integration.node run --disk python -m integration.bench.logs`. The floor of the flood is dockerd's processor
time for the same lines.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from integration.bench.processor_time import own_seconds
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.cri import HOST_NETWORK, Cri, container_config, pod_config
from integration.node.commands import NodeError, step
from integration.node.images import BUSYBOX
from integration.waiting import wait_until
from shim.api.docker.log_entry_pb2 import LogEntry
from shim.api.v1 import api_pb2 as pb
from shim.base.times import ns_from_rfc3339
from shim.config.model import DockerLogDriver
from shim.logs.drivers import FORMATS
from shim.logs.interface import ContainerLog
from shim.logs.supervisor import LogSupervisor

_FLOOD = "timeout {seconds} awk 'BEGIN{{for(i=0;;i++) printf \"%099d\\n\", i}}'"
"""Numbered lines of 100 bytes, printed as fast as possible."""
_DRIP = "mkfifo /f; exec 3<>/f; while :; do for i in 0 1 2 3 4 5 6 7 8 9; do echo {line}; done; read -t 0.1 -u 3; done"
"""About 100 lines a second, without starting a program for each line."""
_TICK_SECONDS = 0.005


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """A container that writes as fast as it can."""

    lines: int
    seconds: float
    """From its start to its end as Docker reports it."""
    docker_lines_per_second: float
    late_seconds: float
    """From its end to the last line in the CRI log."""
    worker_lines_per_cpu_second: float
    of_docker_cpu: float
    """Processor time of the log process relative to dockerd's for the same lines."""
    list_quiet_ms: float
    list_loaded_ms: float


class ManyContainers(msgspec.Struct, frozen=True, kw_only=True):
    """Many containers that write a little."""

    containers: int
    lines_per_second: float
    worker_core_percent: float
    delay_ms_median: float
    delay_ms_p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures."""

    engine: str
    driver: DockerLogDriver
    load_before: float
    """Runnable tasks over the last minute; other work makes the figures worse."""
    flood: Flood
    many: ManyContainers
    rss_mib_200: float
    """Memory of the log process with 200 logs, all of them written to."""
    idle_cpu_seconds: float
    """Processor time of the log process in five idle seconds."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process whose processor time and memory are measured."""

    pid: int

    def cpu(self) -> float:
        """Return the processor time so far, in seconds."""
        return own_seconds(self.pid)

    def rss_mib(self) -> float:
        """Return the resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class Pod:
    """A pod whose containers write."""

    def __init__(self, cri: Cri, logs: Path) -> None:
        self._cri = cri
        self._config = pod_config("writers", log_directory=str(logs / "writers"), linux=HOST_NETWORK)
        self._directory = logs / "writers"
        self._sandbox = cri.run(self._config)

    def start(self, name: str, script: str) -> tuple[str, Path]:
        """Start a container that runs a script; return its id and the path of its log."""
        config = container_config(name, image=BUSYBOX, command=("sh", "-c", script), log_path=f"{name}.log")
        container_id = self._cri.create(self._sandbox, config, pod=self._config)
        self._cri.start(container_id)
        return container_id, self._directory / f"{name}.log"

    def remove(self) -> None:
        """Stop and remove the pod."""
        self._cri.stop(self._sandbox)
        self._cri.remove(self._sandbox)


def measure(engine_name: str, *, driver: DockerLogDriver, seconds: int, containers: int) -> Figures:
    """Measure all figures with this logging driver of Docker. Raises NodeError if setup fails."""
    load = os.getloadavg()[0]
    with step("memory of 200 logs"):
        rss, idle = measure_memory(Path("/run/node/bench-memory"), driver=driver)
    with prepared(engine_name) as setup, serving(setup, docker_log_driver=driver) as (_, cri):
        worker = Process(_worker(cri))
        pod = Pod(cri, setup.logs)
        with step(f"one container floods for {seconds} s"):
            flood = measure_flood(setup, cri, pod, worker=worker, seconds=seconds)
        with step(f"{containers} containers write"):
            many = measure_many(pod, worker=worker, containers=containers)
        pod.remove()
        return Figures(
            engine=setup.engine.version,
            driver=driver,
            load_before=load,
            flood=flood,
            many=many,
            rss_mib_200=rss,
            idle_cpu_seconds=idle,
        )


def measure_flood(setup: Setup, cri: Cri, pod: Pod, *, worker: Process, seconds: int) -> Flood:
    """Measure a container that writes as fast as it can."""
    quiet = _list_ms(cri)
    dockerd = Process(setup.engine.daemon.pid)
    before = worker.cpu(), dockerd.cpu()
    began = time.monotonic()
    container_id, path = pod.start("flood", _FLOOD.format(seconds=seconds))
    loaded = _list_ms(cri)
    setup.engine.api.wait(container_id)
    ended = time.monotonic()
    exited = pb.CONTAINER_EXITED
    wait_until(lambda: cri.container_status(container_id).state == exited, 30)
    late = time.monotonic() - ended
    used, docker_used = worker.cpu() - before[0], dockerd.cpu() - before[1]
    lines = _check_numbered(path)
    path.unlink()
    return Flood(
        lines=lines,
        seconds=ended - began,
        docker_lines_per_second=lines / (ended - began),
        late_seconds=late,
        worker_lines_per_cpu_second=lines / used,
        of_docker_cpu=used / docker_used,
        list_quiet_ms=quiet,
        list_loaded_ms=loaded,
    )


def measure_many(pod: Pod, *, worker: Process, containers: int) -> ManyContainers:
    """Measure containers that write 100 lines a second each."""
    line = "x" * 99
    paths = [pod.start(f"drip-{number}", _DRIP.format(line=line))[1] for number in range(containers)]
    watched = paths[:: max(1, containers // 10)]
    sizes = [path.stat().st_size for path in paths]
    before, began = worker.cpu(), time.monotonic()
    delays = _delays(watched, seconds=10.0)
    took = time.monotonic() - began
    written = sum(path.stat().st_size for path in paths) - sum(sizes)
    return ManyContainers(
        containers=containers,
        lines_per_second=written / (len(line) + 41) / took,
        worker_core_percent=(worker.cpu() - before) / took * 100,
        delay_ms_median=statistics.median(delays),
        delay_ms_p99=percentile(delays, 99),
    )


def measure_memory(home: Path, *, driver: DockerLogDriver) -> tuple[float, float]:
    """Follow 200 logs of 140 kB without containers; return the resident MiB and the idle processor seconds."""
    with _supervised() as (supervisor, worker):
        logs = [_written(home / f"{number}", driver) for number in range(200)]
        for log in logs:
            supervisor.follow_now(log)
        wait_until(lambda: all(Path(log.cri).stat().st_size == 1000 * 140 for log in logs))
        rss = worker.rss_mib()
        before = worker.cpu()
        time.sleep(5)
        return rss, worker.cpu() - before


def percentile(values: Sequence[float], rank: int) -> float:
    """Return the percentile `rank` (nearest rank)."""
    return sorted(values)[math.ceil(rank / 100 * len(values)) - 1]


@contextmanager
def _supervised() -> Iterator[tuple[LogSupervisor, Process]]:
    supervisor = LogSupervisor(level="warning", style="json")
    supervisor.start(on_drained=lambda _: None)
    try:
        yield supervisor, Process(wait_until(lambda: supervisor.stats().pid))
    finally:
        supervisor.stop()


def _written(directory: Path, driver: DockerLogDriver) -> ContainerLog:
    docker = Path(FORMATS[driver].path(str(directory)))
    docker.parent.mkdir(parents=True)
    docker.write_bytes(_record(driver) * 1000)
    return ContainerLog(
        id=str(directory), docker=str(docker), cri=str(directory / "0.log"), driver=driver, created_at=1
    )


def _record(driver: DockerLogDriver) -> bytes:
    """Return a line of 100 bytes as Docker stores it."""
    content, time = "x" * 99, "2026-01-01T00:00:00.123456789Z"
    if driver == "json-file":
        return msgspec.json.encode({"log": content + "\n", "stream": "stdout", "time": time}) + b"\n"
    entry = LogEntry(source="stdout", time_nano=ns_from_rfc3339(time), line=content.encode()).SerializeToString()
    size = len(entry).to_bytes(4, "big")
    return size + entry + size


def _worker(cri: Cri) -> int:
    def pid() -> int:
        info = cri.runtime.Status(pb.StatusRequest(verbose=True)).info["config"]
        return int(msgspec.json.decode(info)["logs"]["pid"])

    return wait_until(pid)


def _list_ms(cri: Cri) -> float:
    return statistics.median(_timed_ms(cri.containers) for _ in range(200))


def _timed_ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def _check_numbered(path: Path) -> int:
    """Return the number of lines; raise NodeError if a number is missing."""
    count, last = 0, b""
    with path.open("rb") as log:
        for line in log:
            last = line.rpartition(b" ")[2]
            if int(last) != count:
                raise NodeError(f"flood: line {count} of the log has the number {int(last)}")
            count += 1
    return count


def _delays(paths: Sequence[Path], *, seconds: float) -> list[float]:
    """Return the delays of new lines from Docker's timestamp until they can be read, in milliseconds."""
    files = [path.open("rb") for path in paths]
    for file in files:
        file.seek(0, os.SEEK_END)
    delays: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for file in files:
            if lines := file.read():
                now = time.time()
                delays += [(now - _seconds(line)) * 1000 for line in lines.splitlines()]
        time.sleep(_TICK_SECONDS)
    for file in files:
        file.close()
    return delays


def _seconds(line: bytes) -> float:
    return ns_from_rfc3339(line.partition(b" ")[0].decode()) / 1e9


def main() -> int:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.logs", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1])
    parser.add_argument(
        "--driver", choices=get_args(DockerLogDriver), default="json-file", help="Docker's logging driver"
    )
    parser.add_argument("--seconds", type=int, default=20, help="duration of the flood (%(default)s)")
    parser.add_argument(
        "--containers", type=int, default=100, help="number of containers that write a little (%(default)s)"
    )
    given = parser.parse_args()
    try:
        figures = measure(given.engine, driver=given.driver, seconds=given.seconds, containers=given.containers)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
