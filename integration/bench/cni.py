"""Times of ADD and DEL for each plugin of the shipped template and bandwidth: `make bench-cni`.

Each plugin runs as the server runs it, in a fresh network namespace; the last row includes the server's overhead.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from integration.node.engine import remove_link
from integration.node.isolation import HOME, Node, this_node
from shim.api.v1 import api_pb2 as pb
from shim.cni.arguments import BURST_BITS, INTERFACE, capability_args, cni_args
from shim.cni.conf import parse_network
from shim.cni.plugins import Attachment, Plugins
from shim.cni.template import render

_TEMPLATE = Path(__file__).parents[2] / "cni_conf_examples" / "kubenet.conflist.template"
_RANGES = ("10.96.0.0/16", "fd00:96::/64")
_MORE = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
_SECONDS = 60.0

Times = dict[tuple[str, str], list[float]]
"""Milliseconds by plugin and verb."""


def main() -> int:
    """Measure, and print the table."""
    arguments = _parser().parse_args()
    node = this_node()
    if node is None:
        print("bench: runs only in isolation: make bench-cni", file=sys.stderr)
        return 1
    times = measure(node, rounds=arguments.rounds)
    print(f"{'ms, median of ' + str(arguments.rounds):32} {'ADD':>8} {'DEL':>8}")
    for plugin in dict.fromkeys(plugin for plugin, _ in times):
        add, delete = (statistics.median(times[plugin, verb]) for verb in ("ADD", "DEL"))
        print(f"{plugin:32} {add:8.1f} {delete:8.1f}")
    return 0


def measure(node: Node, *, rounds: int) -> Times:
    """Attach and release `rounds` pods, one after the other."""
    home = HOME / "bench-cni"
    (home / "log").mkdir(parents=True)
    bin_dir = _timing_plugins(home, node.tools.root / "usr/lib/cni")
    plugins = Plugins(bin_dirs=[bin_dir], cache_dir=home / "cache", timeout=_SECONDS)
    times: Times = defaultdict(list)
    for number in range(rounds + 1):
        with _namespace(home / f"ns-{number}") as netns:
            attachment = _attachment(home, netns, number=number)
            began = time.perf_counter()
            plugins.intend(attachment)
            result = plugins.add(attachment)
            added = time.perf_counter()
            plugins.delete(msgspec.structs.replace(attachment, result=result))
            times["the list, as the server runs it", "ADD"].append((added - began) * 1e3)
            times["the list, as the server runs it", "DEL"].append((time.perf_counter() - added) * 1e3)
        for plugin, verb, milliseconds in _taken(home / "log"):
            times[plugin, verb].append(milliseconds)
        if number == 0:
            times.clear()  # the first pod creates the bridge and the chains that all share
    remove_link("cbr0")
    return dict(sorted(times.items(), key=lambda item: item[0][0].startswith("the list")))


def _attachment(home: Path, netns: Path, *, number: int) -> Attachment:
    content = render(_TEMPLATE.read_text(), ranges=_RANGES, source=str(_TEMPLATE))
    conflist = parse_network(content, file="bench.conflist").conflist
    conflist["plugins"][0]["ipam"]["dataDir"] = str(home / "leases")
    conflist["plugins"].append(_MORE)
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=f"bench-{number}", namespace="default", uid=f"u-{number}"),
        port_mappings=[pb.PortMapping(container_port=80, host_port=21000 + number)],
    )
    capabilities: dict[str, Any] = capability_args(config, pod_ranges=())
    capabilities["bandwidth"] = {"ingressRate": 10**9, "ingressBurst": BURST_BITS}
    container_id = f"{number:064x}"
    return Attachment(
        conflist=conflist,
        container_id=container_id,
        netns=str(netns),
        ifname=INTERFACE,
        args=cni_args(config.metadata, sandbox_id=container_id),
        capabilities=capabilities,
    )


def _timing_plugins(home: Path, real: Path) -> Path:
    """Wrap the plugins to log when each began and ended; bridge calls host-local through its wrapper, too."""
    bin_dir = home / "bin"
    bin_dir.mkdir()
    for plugin in real.iterdir():
        wrapper = bin_dir / plugin.name
        wrapper.write_text(
            "#!/bin/bash\nbegan=$EPOCHREALTIME\n"
            f"{plugin}\ncode=$?\n"
            f'echo "{plugin.name} $CNI_COMMAND $began $EPOCHREALTIME" >>{home}/log/times\nexit $code\n'
        )
        wrapper.chmod(0o755)
    return bin_dir


def _taken(log: Path) -> Iterator[tuple[str, str, float]]:
    for line in (log / "times").read_text().splitlines():
        plugin, verb, began, ended = line.split()
        if verb in ("ADD", "DEL"):
            yield plugin, verb, (float(ended) - float(began)) * 1e3
    (log / "times").unlink()


@contextmanager
def _namespace(path: Path) -> Iterator[Path]:
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
        path.unlink()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.bench.cni", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="number of pods, one after the other (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
