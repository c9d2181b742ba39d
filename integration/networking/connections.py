"""Test every example in every direction, with both iptables variants, both plugin releases and two Engines.

python -m integration.networking.connections [--engine NAME]... [--write]    in isolation: `make networking`
"""

import argparse
import sys

from integration.networking.directions import connect, two_pods
from integration.networking.lab import Filter, Lab, example, example_names, lab, with_ipv6, with_nftables
from integration.networking.table import IMPOSSIBLE, PAGE, Seen, Setting, red, replace_table, table_of, tries
from integration.node.commands import NodeError, step
from integration.node.isolation import Node, this_node
from integration.node.packages import Unpacked

ENGINES = ("20.10", "28")


def main() -> int:
    """Test all combinations, print or write the table, and return 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m integration.networking.connections", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    given = parser.parse_args()
    node = this_node()
    if node is None:
        raise NodeError("the tries run in isolation only: make networking")
    seen = _try_all(node, given.engine or ENGINES)
    text = table_of(seen)
    print(text)
    for problem in red(seen):
        print(f"does not work: {problem}", file=sys.stderr)
    if given.write:
        PAGE.write_text(replace_table(PAGE.read_text(), text))
    return 1 if red(seen) else 0


def _try_all(node: Node, engines: tuple[str, ...]) -> Seen:
    seen: Seen = {}
    for engine in engines:
        for plugins in (node.tools, node.newer_plugins):
            if plugins is None:
                raise NodeError(f"no newer CNI plugins: {node.newer_plugins_missing}")
            for tables in ("legacy", "nft"):
                _try_one(node, engine=engine, tables=tables, plugins=plugins, seen=seen)
    return seen


def _try_one(node: Node, *, engine: str, tables: Filter, plugins: Unpacked, seen: Seen) -> None:
    release = plugins.record.versions["containernetworking-plugins"].partition("+")[0]
    with (
        step(f"Docker {engine}, iptables-{tables}, CNI plugins {release}"),
        lab(node, engine, tables=tables, bin_dir=plugins.root / "usr/lib/cni") as made,
    ):
        docker = made.served.engine.version.partition("+")[0]
        _try_examples(made, Setting(docker=docker, filter=f"iptables-{tables}", plugins=release), seen=seen)
        if tables == "nft" and plugins is node.newer_plugins:
            _try_examples(made, Setting(docker=docker, filter="nftables", plugins=release), seen=seen)


def _try_examples(made: Lab, setting: Setting, *, seen: Seen) -> None:
    for name in example_names():
        if name in IMPOSSIBLE:
            continue
        conflist = with_ipv6(example(name))
        made.use(with_nftables(conflist) if setting.filter == "nftables" else conflist)
        with two_pods(made, families=(4, 6)) as pods:
            for direction, family in tries(name):
                seen[name, family, direction, setting] = connect(pods, direction, family)


if __name__ == "__main__":
    sys.exit(main())
