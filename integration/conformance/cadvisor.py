"""Compare a kubelet's pod metrics from cAdvisor with its pod metrics from the server.

python -m integration.node run .venv/bin/python -m integration.conformance.cadvisor --bin DIRECTORY

cAdvisor knows the containers of containerd. So a kubelet with default feature gates runs a static pod on containerd,
and a kubelet with `PodAndContainerStatsFromCRI` runs it on the server. The names and labels of both at
`/metrics/cadvisor` are kept in `METRICS`; a test compares docs/metrics.md with them.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from integration.bench import rivals
from integration.bench.setup import prepared, serving
from integration.conformance import binaries
from integration.conformance.cluster import (
    https_call,
    kubelet_answers,
    kubelet_configuration,
    make_control_groups,
    settings_of_version,
    tunables_kept,
)
from integration.conformance.scenario import container, pod
from integration.cri import Cri
from integration.node.commands import NodeError, run, step
from integration.node.daemon import Daemon
from integration.node.engine import program
from integration.node.isolation import Node, new_home, this_node
from integration.node.mounts import unmount_all
from integration.waiting import wait_until

METRICS = Path(__file__).with_name("cadvisor.tsv")
"""A line for each kind of series: metric, object, and the labels from cAdvisor and from the server (`-`: no such
series).
"""

_NONE = "-"
_ENGINE = "28"
_KUBELET = "https://127.0.0.1:10250"
_SECONDS = 180.0
_CALL_SECONDS = 60.0
_NAMESPACE = "default"
_LIMITS = {"limits": {"cpu": "100m", "memory": "32Mi"}}
_BUSY = "while :; do dd if=/dev/zero of=/file bs=64k count=4 conv=fsync; cat /file >/dev/null; sleep 1; done"


class Series(NamedTuple):
    """A kind of series: the name of the metric, and the kind of object."""

    metric: str
    of: str
    """`container`, `pause` (the pause container and the pod's network), `pod` (the pod's cgroup), or `node` (all
    others).
    """


_SETTLED = {
    Series("container_cpu_cfs_periods_total", "container"),
    Series("container_processes", "container"),
    Series("container_network_receive_bytes_total", "pause"),
}
"""Series of the pod that must exist before its metrics are compared."""

Labels = dict[Series, tuple[str, ...]]
"""Sorted names of labels."""


def main() -> int:
    """Compare the metrics, print the table, and store it if requested."""
    arguments = _parser().parse_args()
    node = this_node()
    if node is None:
        print("cadvisor: runs only in isolation: python -m integration.node run", file=sys.stderr)
        return 2
    try:
        found = _found(arguments.bin)
        lines = list(_table(*_both(node, found), version=found.programs["kubelet"].version))
    except NodeError as cause:
        print(f"cadvisor: {cause}", file=sys.stderr)
        return 2
    text = "".join(f"{line}\n" for line in lines)
    print(text, end="")
    if arguments.write:
        METRICS.write_text(text)
    return 0


def read(path: Path = METRICS) -> Iterator[tuple[Series, tuple[str, ...] | None, tuple[str, ...] | None]]:
    """Yield each kind of series with its labels from cAdvisor and from the server, None for a missing series."""
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            metric, of, without, with_gate = line.split("\t")
            yield Series(metric, of), _labels(without), _labels(with_gate)


def _found(directory: Path | None) -> binaries.Binaries:
    found = binaries.find(directory, ["kubelet"])
    if missing := found.missing(["kubelet"]):
        raise NodeError(found.explain(missing))
    return found


def _labels(text: str) -> tuple[str, ...] | None:
    return None if text == _NONE else tuple(text.split(","))


def _table(cadvisor: Labels, server: Labels, *, version: str) -> Iterator[str]:
    yield f"# Metrics of pods of a kubelet {version}: python -m integration.conformance.cadvisor"
    yield "# metric\tseries of\tlabels from cAdvisor (containerd)\tlabels from the server"
    for series in sorted(cadvisor.keys() | server.keys()):
        sides = (",".join(side.get(series, (_NONE,))) for side in (cadvisor, server))
        yield "\t".join((*series, *sides))


def _both(node: Node, found: binaries.Binaries) -> tuple[Labels, Labels]:
    """Return the labels without the gate, from cAdvisor, and with the gate, from the server."""
    with prepared(_ENGINE) as setup, tunables_kept():
        containerd = program("containerd", setup.engine.binaries)
        with (
            rivals.running(setup, containerd, number=1) as rival,
            _kubelet(node, found, rival.socket, rival.cri) as labels,
        ):
            without = labels
        gates = {"PodAndContainerStatsFromCRI": True}
        with serving(setup) as (server, cri), _kubelet(node, found, server.socket, cri, gates=gates) as labels:
            return without, labels


@contextmanager
def _kubelet(
    node: Node, found: binaries.Binaries, socket: Path, cri: Cri, *, gates: Mapping[str, bool] | None = None
) -> Iterator[Labels]:
    """Run a kubelet without a cluster and a static pod on a CRI server; yield the labels of the pod's metrics."""
    home = new_home("kubelet")
    manifests = home / "manifests"
    manifests.mkdir(parents=True)
    configuration = kubelet_configuration(node, socket=socket, driver=node.cgroup_driver, home=home)
    configuration |= settings_of_version(found.programs["kubelet"].version, gates=gates or {})
    (home / "kubelet.json").write_bytes(msgspec.json.encode(configuration))
    make_control_groups(node.cgroup_parent)
    manifest = pod("p", container("sh", "-c", _BUSY, resources=_LIMITS), metadata={"namespace": _NAMESPACE})
    (manifests / "p.json").write_bytes(msgspec.json.encode(manifest))
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var/log"], timeout=_CALL_SECONDS)
    daemon = Daemon(
        [
            found["kubelet"],
            f"--config={home / 'kubelet.json'}",
            f"--root-dir={home / 'root'}",
            f"--cert-dir={home / 'certificates'}",
            f"--containerd={socket}",  # the server that its cAdvisor asks
        ],
        log=home / "kubelet.log",
        env={**os.environ},
    )
    try:
        daemon.start(ready=kubelet_answers, timeout=_SECONDS)
        with step("metrics of a pod"):
            wait_until(lambda: labels_of(_scraped()).keys() >= _SETTLED, _SECONDS)
        yield labels_of(_scraped())
    except BaseException:
        print(daemon.log_tail(), flush=True)
        raise
    finally:
        daemon.stop(timeout=_CALL_SECONDS)
        cri.remove_all()  # before the unmounts: running pods keep the file system of their logs busy
        unmount_all(home)
        unmount_all(Path("/var/log"))


def _scraped() -> str:
    return https_call(_KUBELET, "/metrics/cadvisor")[1].decode()


def labels_of(text: str) -> Labels:
    """Return the labels of each kind of series in a scrape."""
    found: Labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser appends _total to names of counters that lack it.
            name = sample.name if f"\n{sample.name}{{" in text else sample.name.removesuffix("_total")
            found[Series(name, _of(sample.labels))] = tuple(sorted(sample.labels))
    return found


def _of(labels: Mapping[str, str]) -> str:
    if not labels.get("namespace"):
        return "node"
    if labels["container"] in ("", "POD"):  # containerd omits the name; CRI-O, and Docker before, have POD
        return "pause" if labels["image"] else "pod"
    return "container"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.conformance.cadvisor", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--bin", type=Path, help="directory of the kubelet, searched before PATH")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {METRICS.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
