"""The cost of an exec: `python -m integration.bench.exec`, in isolation.

`true` runs in a container, in turn through ExecSync with the server's own exec, through Docker's API and through `runc
exec`. The figure is the processor time of the whole machine, client included, so the machine must be idle otherwise.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

from integration.bench.pods import ordinary_pod
from integration.bench.processor_time import machine_seconds
from integration.bench.rounds import rotated
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.cri import Cri
from integration.node.commands import step
from integration.node.engine import program

OWN, DOCKER, RUNC = "own exec", "Docker's API", "runc exec"
SHARE = 0.2
"""Bound on the processor time, relative to Docker's exec."""
MEDIAN_MS, LAST_MS = 10.0, 25.0
"""Bounds on latency: the median of sequential execs, and the 99th percentile of AT_ONCE concurrent execs."""
AT_ONCE = 8
EACH = 50
"""Execs of a measurement."""
PER_MINUTE = 1000
"""Execs a minute, as many as the probes of 100 pods."""
STEADY_SHARE = 0.15
"""Bound on the processors that these execs use."""
PSS_MIB = 8.0
"""Bound on the memory of the exec program."""


@dataclass
class Took:
    """The measurements of a way."""

    wall_ms: list[float] = field(default_factory=list)
    """Duration of each exec."""
    cpu_ms: list[float] = field(default_factory=list)
    """Processor time of the whole machine for each exec, the mean of each measurement."""


def measure(engine_name: str, *, rounds: int, pods: int, seconds: float) -> list[Bar]:
    """Measure all ways in turn."""
    with prepared(engine_name) as setup, ExitStack() as stack:
        _, own = stack.enter_context(serving(setup))
        container = _container(own, setup)
        ways: dict[str, Callable[[], object]] = {
            OWN: partial(own.exec, container, "true"),
            DOCKER: partial(_by_docker, setup, container),
            RUNC: partial(_by_runc, setup, container),
        }
        took = {way: Took() for way in ways}
        with step(f"{EACH} execs by each of {len(ways)} ways, {rounds} times"):
            for number in range(rounds):
                for way in rotated(list(ways), number):
                    _measure(ways[way], took[way])
        for way, each in took.items():
            print(f"{way:28} {statistics.median(each.wall_ms):6.1f} ms, processor {_cpu(each):6.1f} ms")
        with step(f"{AT_ONCE} at once"):
            last = _concurrent(ways[OWN])
        with step(f"{PER_MINUTE} execs a minute over {pods} pods, for {seconds:g} s"):
            steady = _steady(own, [_container(own, setup, name=f"exec-{number}") for number in range(pods)], seconds)
        memory = _memory()
    return [
        Bar(
            "processor time of an exec, relative to Docker's",
            _cpu(took[OWN]) / _cpu(took[DOCKER]),
            "times",
            SHARE,
            at_most=True,
        ),
        Bar("ExecSync of `true`, median", statistics.median(took[OWN].wall_ms), "ms", MEDIAN_MS, at_most=True),
        Bar(f"ExecSync of `true`, {AT_ONCE} at once, p99", last, "ms", LAST_MS, at_most=True),
        Bar(f"{PER_MINUTE} execs a minute: processors", steady, "", STEADY_SHARE, at_most=True),
        Bar("memory of the exec program", memory, "MiB", PSS_MIB, at_most=True),
    ]


def _container(cri: Cri, setup: Setup, *, name: str = "exec") -> str:
    config, container = ordinary_pod(name, logs=str(setup.logs))
    Path(config.log_directory, container.log_path).parent.mkdir(parents=True, exist_ok=True)
    made = cri.create(cri.run(config), container, pod=config)
    cri.start(made)
    cri.exec(made, "true")
    return made


def _measure(run: Callable[[], object], took: Took) -> None:
    busy = machine_seconds()
    for _ in range(EACH):
        began = time.perf_counter()
        run()
        took.wall_ms.append((time.perf_counter() - began) * 1000)
    took.cpu_ms.append((machine_seconds() - busy) / EACH * 1000)


def _concurrent(run: Callable[[], object]) -> float:
    def timed(_: int) -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(AT_ONCE) as pool:
        walls = sorted(pool.map(timed, range(10 * EACH)))
    return walls[int(len(walls) * 0.99)]


def _steady(cri: Cri, containers: Sequence[str], seconds: float) -> float:
    """Run PER_MINUTE execs a minute; return how many processors they use more than on the idle machine."""
    idle = _processors(seconds / 4, partial(time.sleep, seconds / 4))
    turns = cycle(containers)
    began, done = time.monotonic(), 0

    def run() -> None:
        nonlocal done
        cri.exec(next(turns), "true")
        done += 1
        time.sleep(max(0.0, began + done * 60 / PER_MINUTE - time.monotonic()))

    return _processors(seconds, run) - idle


def _processors(seconds: float, work: Callable[[], None]) -> float:
    busy, began = machine_seconds(), time.monotonic()
    while time.monotonic() - began < seconds:
        work()
    return (machine_seconds() - busy) / (time.monotonic() - began)


def _cpu(took: Took) -> float:
    return statistics.median(took.cpu_ms)


def _by_docker(setup: Setup, container: str) -> None:
    api = setup.engine.api
    made = api.exec_create(container, ["true"])["Id"]
    api.exec_start(made)
    assert api.exec_inspect(made)["ExitCode"] == 0


def _by_runc(setup: Setup, container: str) -> None:
    root = setup.engine.home / "exec" / "runtime-runc" / "moby"
    command = [str(program("runc", setup.engine.binaries)), "--root", str(root), "exec", container, "true"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _memory() -> float:
    """Return the PSS of the exec program, in MiB."""
    for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
        try:
            if b"own_exec" in (path.parent / "cmdline").read_bytes():
                rollup = path.read_text()
                return int(rollup.partition("Pss:")[2].split()[0]) / 1024
        except OSError:
            continue  # it has ended
    raise AssertionError("no exec program runs")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.exec", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="measurements of each way (%(default)s)")
    parser.add_argument("--pods", type=int, default=20, help="number of pods with steady execs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the steady execs (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(
        partial(measure, arguments.engine, rounds=arguments.rounds, pods=arguments.pods, seconds=arguments.seconds)
    )


if __name__ == "__main__":
    sys.exit(main())
