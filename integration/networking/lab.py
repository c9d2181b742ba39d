"""A node in the state that Docker sets up: forwarding is on, and the policy of FORWARD is DROP.

The node is a network namespace with a dockerd and a server. A second namespace is the outside: a host on the
node's network that has no route to pods.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from integration.conftest import NodeDirs, Served, make_node_dirs, serving
from integration.node import images
from integration.node.engines import make_engine
from integration.node.isolation import HOME, Node
from integration.node.netns import Netns, new_netns
from integration.server import PROGRAM
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.cni.plugin import JsonObject
from shim.cni.template import render

Filter = Literal["legacy", "nft"]
"""The variant of `iptables`: for the kernel's legacy tables, or for nftables."""

EXAMPLES = Path(__file__).parents[2] / "cni_conf_examples"

OUTSIDE = {4: "192.168.10.1", 6: "fd00:192:168::1"}
NODE = {4: "192.168.10.2", 6: "fd00:192:168::2"}
WITH_EXPERIMENTAL_IP6TABLES = {"20.10", "26"}
"""Engines before 27.0, where ip6tables is experimental."""
IPV6_SETTINGS: dict[str, object] = {"ipv6": True, "fixed-cidr-v6": "fd00:d0c::/64", "ip6tables": True}

TEMPLATE_RANGES = ("10.244.0.0/24", "fd00:10:244::/64")

_NOTICED_SECONDS = 60.0
_serial = count()
_PREFIX = {4: 24, 6: 64}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IPV6_RANGES = {"10.244.0.0/24": "fd00:10:244::/64", "192.168.10.0/24": "fd00:192:168::/64"}


@dataclass(frozen=True, slots=True)
class Lab:
    """The node, the outside, and the server under test."""

    node: Netns
    outside: Netns
    served: Served

    @property
    def dirs(self) -> NodeDirs:
        """The server's directories."""
        return self.served.dirs

    def use(self, conflist: JsonObject) -> None:
        """Configure a network under a unique name, on a node without leftovers of other networks."""
        self.clear()
        conflist["name"] = f"{conflist['name']}-{next(_serial)}"
        for plugin in conflist["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = str(self.dirs.cni_leases)
        temporary = self.dirs.cni_conf / "pods.new"
        temporary.write_bytes(msgspec.json.encode(conflist))
        temporary.rename(self.dirs.cni_conf / "10-pods.conflist")
        wait_until(lambda: f"network {conflist['name']} " in self._network_status(), _NOTICED_SECONDS)

    def _network_status(self) -> str:
        conditions = self.served.cri.runtime.Status(pb.StatusRequest()).status.conditions
        return next(condition.message for condition in conditions if condition.type == "NetworkReady")

    def clear(self) -> None:
        """Remove pods, and the state that their network keeps on the node for later pods."""
        self.served.clear()
        for bridge in ("cni0", "cbr0"):
            if bridge in self.node.run("ip -o link"):
                self.node.run(f"ip link delete {bridge}")
        for command in ("iptables", "ip6tables"):
            rules = self.node.run(f"{command} -S").splitlines()
            for number, rule in reversed(list(enumerate(rule for rule in rules if rule.startswith("-A FORWARD ")))):
                if rule.endswith("-j CNI-FORWARD"):
                    self.node.run(f"{command} -D FORWARD {number + 1}")
            for chain in ("CNI-FORWARD", "CNI-ADMIN"):
                if f"-N {chain}" in rules:
                    self.node.run(f"{command} -F {chain}")
                    self.node.run(f"{command} -X {chain}")
        self.node.set("ipv6/conf/all/forwarding", 0)

    def dropped(self, family: int) -> int:
        """Return the number of packets that the policy of FORWARD has dropped."""
        command = "ip6tables" if family == 6 else "iptables"
        policy = self.node.run(f"{command} -nvxL FORWARD").splitlines()[0]
        assert "policy DROP" in policy
        return int(policy.split("DROP")[1].split()[0])

    @contextmanager
    def forwarding(self, family: int) -> Iterator[None]:
        """Set the policy of FORWARD to ACCEPT while the block runs."""
        command = "ip6tables" if family == 6 else "iptables"
        self.node.run(f"{command} -P FORWARD ACCEPT")
        try:
            yield
        finally:
            self.node.run(f"{command} -P FORWARD DROP")


def example_names() -> list[str]:
    """Return the file names of the examples, including a template."""
    return sorted(path.name for path in EXAMPLES.iterdir() if path.name != "README.md")


def example(name: str) -> JsonObject:
    """Read an example; a template is rendered with a node's ranges."""
    text = (EXAMPLES / name).read_text()
    content = render(text, ranges=TEMPLATE_RANGES, source=name) if name.endswith(".template") else text
    conflist: JsonObject = msgspec.json.decode(content)
    return conflist


def with_ipv6(conflist: JsonObject) -> JsonObject:
    """Add an IPv6 range to a list without one, as the README of the examples says."""
    ipam = conflist["plugins"][0]["ipam"]
    if len(ipam["ranges"]) == 1:
        ranges = ipam["ranges"]
        ranges.append([{"subnet": _IPV6_RANGES[ranges[0][0]["subnet"]]}])
        if "rangeStart" in ranges[0][0]:
            subnet = "fd00:192:168::"
            ranges[1][0] |= {"rangeStart": f"{subnet}200", "rangeEnd": f"{subnet}250", "gateway": f"{subnet}1"}
        if "routes" in ipam:
            ipam["routes"].append({"dst": "::/0"})
    return conflist


def without_firewall(conflist: JsonObject) -> JsonObject:
    """Return a list without the plugin `firewall`."""
    return {**conflist, "plugins": [plugin for plugin in conflist["plugins"] if plugin["type"] != "firewall"]}


def with_nftables(conflist: JsonObject) -> JsonObject:
    """Set portmap's backend to nftables, which release 1.6 and newer support.

    Masquerading stays with iptables: if iptables is installed, every DEL of the bridge plugin 1.9.1 tries to remove by
    iptables the rules that it made by nftables, and fails.
    """
    for plugin in conflist["plugins"]:
        if plugin["type"] == "portmap":
            plugin["backend"] = "nftables"
    return conflist


@contextmanager
def machines(home: Path, *, environ: Mapping[str, str] | None = None) -> Iterator[tuple[Netns, Netns]]:
    """Make a node with forwarding off, and the outside, connected by a veth pair."""
    with ExitStack() as ending:
        node = ending.enter_context(new_netns(home / "node", environ=environ))
        outside = ending.enter_context(new_netns(home / "outside"))
        node.run(f"ip link add eth0 type veth peer name eth0 netns {outside.path}")
        for netns, addresses in ((node, NODE), (outside, OUTSIDE)):
            netns.run("ip link set lo up")
            for family, address in addresses.items():
                netns.run(f"ip address add {address}/{_PREFIX[family]} dev eth0 {'nodad' if family == 6 else ''}")
            netns.run("ip link set eth0 up")
        for address in OUTSIDE.values():
            node.run(f"ip route add default via {address}")
        node.set("ipv4/ip_forward", 0)
        node.set("ipv6/conf/all/forwarding", 0)
        yield node, outside


@contextmanager
def lab(made: Node, engine_name: str, *, tables: Filter = "nft", bin_dir: Path | None = None) -> Iterator[Lab]:
    """Run a node whose Docker has set FORWARD to DROP, with a server that uses the plugins of `bin_dir`."""
    settings = IPV6_SETTINGS | ({"experimental": True} if engine_name in WITH_EXPERIMENTAL_IP6TABLES else {})
    with ExitStack() as ending:
        home = Path(tempfile.mkdtemp(prefix="lab-", dir=HOME))
        ending.callback(shutil.rmtree, home)
        environ = {"PATH": _search_path(home / "tools", tables)}
        node, outside = ending.enter_context(machines(home, environ=environ))
        engine = make_engine(made, engine_name, variant=f"-{home.name}", settings=settings, netns=node)
        ending.callback(shutil.rmtree, engine.home, ignore_errors=True)
        engine.start()
        ending.callback(engine.close)
        images.load(engine.api, images.pause_image(made.busybox))
        dirs = make_node_dirs(made, home)
        if bin_dir is not None:
            for program in bin_dir.iterdir():
                (dirs.cni_more_bin / program.name).symlink_to(program)
        assert "-P FORWARD DROP" in node.run("iptables -S FORWARD")
        # Engines of these releases set the policy only for IPv4, until a network with IPv6 is made.
        node.run("ip6tables -P FORWARD DROP")
        (dirs.cni_conf / "10-pods.conflist").write_bytes(msgspec.json.encode(_first_network(dirs)))
        served = ending.enter_context(serving(engine, dirs, PROGRAM, node))
        yield Lab(node, outside, served)


def _first_network(dirs: NodeDirs) -> JsonObject:
    conflist = example("30-ptp.conflist")
    conflist["plugins"][0]["ipam"]["dataDir"] = str(dirs.cni_leases)
    return without_firewall(conflist)


def _search_path(tools: Path, tables: Filter) -> str:
    """Return a PATH with this variant of `iptables`."""
    tools.mkdir()
    for command in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            found = shutil.which(f"{command}-{tables}{suffix}", path=_PATH)
            assert found is not None
            (tools / f"{command}{suffix}").symlink_to(found)
    return f"{tools}:{_PATH}"
