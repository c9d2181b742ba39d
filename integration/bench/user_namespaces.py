"""The cost of pods in user namespaces, and of the OCI runtime: `python -m integration.bench.user_namespaces`.

Runs in isolation. The start of a pod is RunPodSandbox, CreateContainer and StartContainer. It is timed in turn on an
engine without the OCI runtime, on one with the runtime, and there in a user namespace.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from integration.bench.pods import ordinary_pod
from integration.bench.rounds import rotated
from integration.bench.setup import ENGINES, Setup, prepared, second_engine, serving
from integration.bench.streaming import Bar, print_bars
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import NodeError, step
from integration.pods.user_namespaces import SIZE, features, own_users
from integration.waiting import wait_until

WITHOUT, WITH, MAPPED = "without the runtime", "with the runtime", "in a user namespace"
MORE_MS = {WITH: 3.0, MAPPED: 60.0}
"""Bounds on the additional time of a start: with the runtime compared to without it, and in a user namespace compared
to outside.
"""
_START = ("RunPodSandbox", "CreateContainer", "StartContainer")
_TEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Side:
    """Pods of a kind on an engine."""

    client: PodClient
    logs: str
    ids: Iterator[int] | None
    """First ids of pods in user namespaces; None for other pods."""

    def start(self, name: str) -> float:
        """Start a pod and remove it; return the milliseconds of the start."""
        config, container = ordinary_pod(name, logs=self.logs)
        if self.ids is not None:
            namespaces = own_users(next(self.ids))
            for each in (config, container):
                each.linux.security_context.namespace_options.CopyFrom(namespaces)
        timings = Timings()
        pod = self.client.up(timings, config=config, container=container)
        self.client.down(timings, pod)
        return sum(timings.took[call][0] for call in _START)


def measure(engine_name: str, *, rounds: int) -> list[Bar]:
    """Measure all sides in turn. Raises NodeError if the node does not support user namespaces."""
    with prepared(engine_name) as setup, ExitStack() as stack:
        plain = stack.enter_context(_without_runtime(setup))
        _, cri = stack.enter_context(serving(setup))
        _wait_supported(cri)
        sides = {
            WITHOUT: _Side(PodClient(plain), f"{setup.logs}/without", None),
            WITH: _Side(PodClient(cri), f"{setup.logs}/with", None),
            MAPPED: _Side(PodClient(cri), f"{setup.logs}/mapped", count(SIZE, SIZE)),
        }
        for side in sides.values():  # the first pod creates the bridge and fills caches
            side.start("warm-up")
        took: dict[str, list[float]] = {name: [] for name in sides}
        with step(f"{rounds} rounds"):
            for number in range(rounds):
                for name in rotated(list(sides), number):
                    took[name].append(sides[name].start(f"round-{number}"))
    medians = {name: statistics.median(each) for name, each in took.items()}
    return [_bar(medians, WITH, base=WITHOUT), _bar(medians, MAPPED, base=WITH)]


def _bar(medians: dict[str, float], name: str, *, base: str) -> Bar:
    what = f"start of a pod {name}, {medians[name]:.1f} ms ({base} {medians[base]:.1f} ms): more"
    return Bar(what, medians[name] - medians[base], "ms", MORE_MS[name], at_most=True)


@contextmanager
def _without_runtime(setup: Setup) -> Iterator[Cri]:
    """Run a server on a second engine without the OCI runtime."""
    home = setup.home / "without"
    places = {name: home / name for name in ("state", "netns")}
    for path in (*places.values(), home / "cni-cache"):
        path.mkdir(parents=True)
    (home / "cni-conf").symlink_to(setup.home / "cni-conf")
    with second_engine(setup, settings={"runtimes": {}}) as engine:
        other = replace(setup, engine=engine, home=home, state=places["state"], netns=places["netns"])
        with serving(other) as (_, cri):
            yield cri


def _wait_supported(cri: Cri) -> None:
    try:
        wait_until(lambda: features(cri).user_namespaces, _TEST_SECONDS)
    except AssertionError as error:
        raise NodeError("pods cannot have user namespaces on this node: crictl info says why") from error


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.user_namespaces", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each side (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, rounds=arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
