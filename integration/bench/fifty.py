"""A pod of fifty containers: `python -m integration.bench.fifty`, in isolation.

The pod runs, and its containers are created and started, eight at a time. Then it is stopped and removed. The floor
removes eight containers at a time as well, each by a forced removal.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from integration.bench.floor import Floor
from integration.bench.load import AT_ONCE
from integration.bench.pods import pod_of_many
from integration.bench.rounds import rotated
from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import step
from shim.api.v1 import api_pb2 as pb

SIZE = 50
FACTOR = 1.1
"""Bound on the start, and on the stop and removal, relative to the floor."""
PIDS = {"separate PID namespaces": pb.CONTAINER, "a shared PID namespace": pb.POD}

Item = TypeVar("Item")
Result = TypeVar("Result")
Took = tuple[float, float]
"""Seconds of the start, and of the stop and removal."""


def measure(engine_name: str, *, rounds: int) -> list[Bar]:
    """Measure the server and the floor in turn."""
    bars = []
    with prepared(engine_name) as setup, serving(setup) as (_, cri), ExitStack() as stack:
        floors = [stack.enter_context(Floor(setup)) for _ in range(AT_ONCE)]
        for words, pid in PIDS.items():
            sides: dict[str, Callable[[str], Took]] = {
                "floor": partial(_by_floor, setup, floors, pid),
                "server": partial(_by_server, setup, cri, pid),
            }
            took: dict[str, list[Took]] = {side: [] for side in sides}
            with step(f"{SIZE} containers with {words}, {rounds} times"):
                for number in range(rounds):
                    for side in rotated(list(sides), number):
                        took[side].append(sides[side](f"{side}-{number}-{pid}"))
            bars += _bars(words, took)
    return bars


def _bars(words: str, took: dict[str, list[Took]]) -> list[Bar]:
    bars = []
    for part, what in enumerate(("start", "stop and removal")):
        server, floor = (statistics.median(each[part] for each in took[side]) for side in ("server", "floor"))
        name = f"pod of {SIZE}, {words}: {what}, {server:.1f} s (floor {floor:.1f} s)"
        bars.append(Bar(name, server / floor, "times", FACTOR, at_most=True))
    return bars


def _by_server(setup: Setup, cri: Cri, pid: "pb.NamespaceMode", name: str) -> Took:
    config, containers = pod_of_many(name, size=SIZE, pid=pid, logs=str(setup.logs))
    for each in containers:
        Path(config.log_directory, each.log_path).parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    sandbox = cri.run(config)
    _at_once(lambda each: cri.start(cri.create(sandbox, each, pod=config)), containers)
    started = time.monotonic()
    cri.stop(sandbox)
    cri.remove(sandbox)
    return started - began, time.monotonic() - started


def _by_floor(setup: Setup, floors: Sequence[Floor], pid: "pb.NamespaceMode", name: str) -> Took:
    config, containers = pod_of_many(name, size=SIZE, pid=pid, logs=str(setup.logs))
    idle: SimpleQueue[Floor] = SimpleQueue()
    for each in floors:
        idle.put(each)

    def by_one(work: Callable[[Floor, Item], Result]) -> Callable[[Item], Result]:
        def do(item: Item) -> Result:
            floor = idle.get()
            try:
                return work(floor, item)
            finally:
                idle.put(floor)

        return do

    began = time.monotonic()
    pod = floors[0].up(Timings(), config=config, container=containers[0])
    made = _at_once(by_one(lambda floor, each: floor.add(pod, each)), containers[1:])
    started = time.monotonic()
    _at_once(by_one(Floor.end), made)
    floors[0].down(Timings(), pod)
    return started - began, time.monotonic() - started


def _at_once(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.fifty", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, rounds=arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
