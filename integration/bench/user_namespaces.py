"""What pods in user namespaces cost, and others beside them: `python -m integration.bench.user_namespaces` in a box.

The start of a pod is RunPodSandbox, CreateContainer and StartContainer: in turn on an engine without the OCI runtime,
on one that has it, and there in a user namespace.
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
from integration.bench.setup import ENGINES, Setup, beside, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.commands import NodeError, step
from integration.pods.user_namespaces import SIZE, features, own_users
from integration.waiting import wait_until

WITHOUT, WITH, MAPPED = "without the runtime", "with the runtime", "in a user namespace"
MORE_MS = {WITH: 3.0, MAPPED: 60.0}
"""How much longer the start of a pod may take, than without the runtime and than outside of a user namespace."""
_START = ("RunPodSandbox", "CreateContainer", "StartContainer")
_TEST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Side:
    """Pods of one kind on one engine."""

    client: PodClient
    logs: str
    ids: Iterator[int] | None
    """The first ids of its pods, where they are in user namespaces."""

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
    """Measure all sides in turn. NodeError where pods cannot be in user namespaces."""
    with prepared(engine_name) as setup, ExitStack() as stack:
        plain = stack.enter_context(_without_runtime(setup))
        _, cri = stack.enter_context(serving(setup))
        _wait_possible(cri)
        sides = {
            WITHOUT: _Side(PodClient(plain), f"{setup.logs}/without", None),
            WITH: _Side(PodClient(cri), f"{setup.logs}/with", None),
            MAPPED: _Side(PodClient(cri), f"{setup.logs}/mapped", count(SIZE, SIZE)),
        }
        for side in sides.values():  # the first pod makes the bridge, and fills caches
            side.start("warm-up")
        took: dict[str, list[float]] = {name: [] for name in sides}
        with step(f"{rounds} rounds"):
            for number in range(rounds):
                for name in rotated(list(sides), number):
                    took[name].append(sides[name].start(f"round-{number}"))
    medians = {name: statistics.median(each) for name, each in took.items()}
    return [_bar(medians, WITH, beside=WITHOUT), _bar(medians, MAPPED, beside=WITH)]


def _bar(medians: dict[str, float], name: str, *, beside: str) -> Bar:
    what = f"start of a pod {name}, {medians[name]:.1f} ms ({beside} {medians[beside]:.1f} ms): more"
    return Bar(what, medians[name] - medians[beside], "ms", MORE_MS[name], at_most=True)


@contextmanager
def _without_runtime(setup: Setup) -> Iterator[Cri]:
    """Run a server on another engine, which has no OCI runtime but its own."""
    home = setup.home / "without"
    places = {name: home / name for name in ("state", "netns")}
    for path in (*places.values(), home / "cni-cache"):
        path.mkdir(parents=True)
    (home / "cni-conf").symlink_to(setup.home / "cni-conf")
    with beside(setup, settings={"runtimes": {}}) as engine:
        other = replace(setup, engine=engine, home=home, state=places["state"], netns=places["netns"])
        with serving(other) as (_, cri):
            yield cri


def _wait_possible(cri: Cri) -> None:
    try:
        wait_until(lambda: features(cri).user_namespaces, _TEST_SECONDS)
    except AssertionError as error:
        raise NodeError("pods cannot have user namespaces on this node: crictl info says why") from error


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.user_namespaces", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="of each side (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, rounds=arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
