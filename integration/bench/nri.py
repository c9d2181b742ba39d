"""What NRI plugins cost a pod: `python -m integration.bench.nri --plugins DIR`, in isolation.

The same pod is started without plugins and with three Go plugins that change nothing in it, in turn. A containerd does
the same if its program is given.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from integration import nri_plugins
from integration.bench import rivals
from integration.bench.pods import ordinary_pod
from integration.bench.rounds import rotated
from integration.bench.setup import ENGINES, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import step

MORE_MS = 15.0
"""Bound on the additional milliseconds of CreateContainer with three plugins."""
PODS = 5
"""Pods in a row for each start of the plugins."""
WITHOUT, WITH = "without plugins", "with plugins"
_CALLS = ("RunPodSandbox", "CreateContainer", "StartContainer")
SERVER = "the server"


@dataclass(frozen=True, slots=True)
class _Runtime:
    """A CRI server with its NRI socket."""

    cri: Cri
    socket: Path


def measure(engine_name: str, *, plugins: Path, rounds: int, containerd: Path | None) -> list[Bar]:
    """Measure the server, and containerd if it is given, in turn."""
    programs = [plugins / name for name in nri_plugins.TOGETHER]
    with prepared(engine_name) as setup, ExitStack() as stack:
        server, cri = stack.enter_context(serving(setup))
        runtimes = {SERVER: _Runtime(cri, server.nri_socket)}
        if containerd is not None:
            rival = stack.enter_context(rivals.running(setup, containerd, number=1))
            runtimes[rival.name] = _Runtime(rival.cri, rivals.nri_socket(rival))
        took = {(name, case): Timings() for name in runtimes for case in (WITHOUT, WITH)}
        numbers = count()
        with step(f"{rounds} rounds of {PODS} pods"):
            for number in range(rounds):
                for name in rotated(list(runtimes), number):
                    for case in rotated([WITHOUT, WITH], number):
                        log = setup.home / f"plugins-{next(numbers)}.log"
                        _pods(runtimes[name], programs if case == WITH else (), log=log, timings=took[name, case])
    return [bar for name in runtimes for bar in _bars(name, took[name, WITHOUT], took[name, WITH])]


def _pods(runtime: _Runtime, programs: Sequence[Path], *, log: Path, timings: Timings) -> None:
    client = PodClient(runtime.cri)
    with nri_plugins.connected(programs, socket=runtime.socket, log=log) if programs else nullcontext():
        for number in range(PODS):
            config, container = ordinary_pod(f"{log.stem}-{number}", logs=str(log.parent / "logs"))
            client.down(timings, client.up(timings, config=config, container=container))


def _bars(name: str, without: Timings, with_plugins: Timings) -> list[Bar]:
    """Return a line for each call; only CreateContainer of the server has a bound."""
    bars = []
    for call in _CALLS:
        few, many = (statistics.median(each.took[call]) for each in (without, with_plugins))
        bound = MORE_MS if name == SERVER and call == "CreateContainer" else float("inf")
        bars.append(
            Bar(f"{name}: {call} {few:.1f} ms, {WITH} {many:.1f} ms: more", many - few, "ms", bound, at_most=True)
        )
    return bars


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.nri", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="starts of the plugins on each side (%(default)s)")
    parser.add_argument(
        "--plugins",
        type=Path,
        required=True,
        help=f"directory of the NRI project's plugins {', '.join(nri_plugins.TOGETHER)}",
    )
    parser.add_argument("--beside", type=Path, help="measure this containerd too")
    arguments = parser.parse_args()
    return print_bars(
        partial(
            measure,
            arguments.engine,
            plugins=arguments.plugins,
            rounds=arguments.rounds,
            containerd=arguments.beside,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
