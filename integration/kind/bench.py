"""Time of `kind create cluster` and memory of the runtime, compared to a node with containerd.

`make bench-kind BIN=directory`. Both images have the same base and the same network, and their clusters run in turn.
The base has the images of Kubernetes in its containerd, like a node image of kind.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.bench.machine import docker, machine
from integration.kind.cluster import cluster
from integration.kind.conftest import PROGRAMS_VARIABLE, prepared
from integration.kind.demo import IMAGE
from integration.kind.kubernetes import (
    CONTAINERD_IMAGE,
    Host,
    build_containerd_image,
    prepare_cluster_image,
)
from integration.node.commands import NodeError, step
from integration.node.engine import program
from integration.node.engines import make_engine
from integration.node.isolation import this_node

IMAGES = (CONTAINERD_IMAGE, IMAGE)
_COLUMNS = ("containerd", "pydockershim", "ratio")
_TOGETHER = "all"

Figures = dict[str, float]
"""Figures of a cluster by name: seconds of steps, or MB of programs."""


def main() -> int:
    """Measure, and print the medians."""
    arguments = _parser().parse_args()
    try:
        _measure(rounds=arguments.rounds, imported=not arguments.archives)
    except NodeError as cause:
        print(f"bench: {cause}", file=sys.stderr)
        return 1
    return 0


def _measure(*, rounds: int, imported: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="pydockershim-kind-") as scratch, _host(Path(scratch), imported) as host:
        load_before = os.getloadavg()[0]
        seconds: dict[str, list[Figures]] = {image: [] for image in IMAGES}
        memory: dict[str, list[Figures]] = {image: [] for image in IMAGES}
        for _ in range(rounds):
            for image in IMAGES:
                took, size = _one(host, image)
                seconds[image].append(took)
                memory[image].append(size)
        found, engine = machine(load_before), docker(host.engine)
        images = "in the containerd of the node" if imported else "in archives"
        print(f"\nDocker Engine {engine.version}, cgroups {engine.cgroups}; images {images}; {rounds} rounds in turn")
        print(f"{found.cpus} CPUs, load {found.load_before:.1f} before and {found.load_after:.1f} after; medians\n")
        print("\n".join(table("seconds", *(seconds[image] for image in IMAGES))))
        print()
        print("\n".join(table("MB of PSS", *(memory[image] for image in IMAGES))))


def _one(host: Host, image: str) -> tuple[Figures, Figures]:
    with cluster(host, "cluster.yaml", image=image) as made:
        made.wait_kube_proxy()
        size = made.memory(made.nodes()[0])
        return made.steps, {**size, _TOGETHER: sum(size.values())}


def table(what: str, containerd: Sequence[Figures], ours: Sequence[Figures]) -> Iterator[str]:
    """Yield the lines of a table of medians, minima and maxima; names keep their order."""
    yield f"{what:36}" + "".join(f"{name:>24}" for name in _COLUMNS)
    for name in dict.fromkeys(name for figures in (*ours, *containerd) for name in figures):
        sides = [[figures[name] for figures in side if name in figures] for side in (containerd, ours)]
        ratio = statistics.median(sides[1]) / statistics.median(sides[0]) if all(sides) else None
        yield f"{name:36}" + "".join(f"{_spread(side):>24}" for side in sides) + (f"{ratio:24.2f}" if ratio else "")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


@contextmanager
def _host(scratch: Path, imported: bool) -> Iterator[Host]:
    node = this_node()
    if node is None or not os.environ.get(PROGRAMS_VARIABLE):
        raise NodeError("needs kind and Kubernetes: make bench-kind BIN=directory")
    engine = make_engine(node, "28")
    client = program("docker", node.stable.path)
    programs, tools = map(Path, os.environ[PROGRAMS_VARIABLE].split(":"))
    with step("starting Docker Engine 28"):
        engine.start()
    try:
        with step("building the node images"):
            references = prepare_cluster_image(
                engine,
                client,
                prepared=prepared(),
                node=node,
                programs=programs,
                tools=tools,
                scratch=scratch,
                imported=imported,
            )
            build_containerd_image(engine, scratch=scratch)
        yield Host(engine, client, programs, references)
    finally:
        engine.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.kind.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="clusters of each image (%(default)s)")
    parser.add_argument(
        "--archives", action="store_true", help="keep images in archives, which are loaded at the first boot"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
