"""Doctor's findings on nodes that drop packets of pods, and on a healthy node.

The command at the start of the advice repairs each broken node.
"""

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from integration.conftest import NodeDirs
from integration.networking.directions import two_pods
from integration.networking.lab import Lab, example, with_ipv6, without_firewall
from integration.node.netns import Netns, new_netns
from integration.pods.test_doctor import doctor, levels
from shim.cni.plugin import JsonObject
from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.forwarding import check_forwarding
from shim.doctor.here import check_here

READY = {
    "ipv4/ip_forward": 1,
    "ipv6/conf/all/forwarding": 1,
    "bridge/bridge-nf-call-iptables": 1,
    "bridge/bridge-nf-call-ip6tables": 1,
    "ipv4/conf/all/rp_filter": 0,
}


@dataclass(frozen=True, slots=True)
class Broken:
    """A fault of a node, and doctor's finding."""

    breaks: tuple[str, ...]
    subject: str
    names: str
    firewall: bool = True


BROKEN = {
    "no forwarding of IPv4": Broken(("sysctl -qw net.ipv4.ip_forward=0",), "forwarding", "net.ipv4.ip_forward is 0"),
    "no forwarding of IPv6": Broken(
        ("sysctl -qw net.ipv6.conf.all.forwarding=0",), "ipv6 forward", "net.ipv6.conf.all.forwarding is 0"
    ),
    "bridges pass iptables by": Broken(
        ("sysctl -qw net.bridge.bridge-nf-call-iptables=0",), "bridge rules", "bridge-nf-call-iptables is 0"
    ),
    "bridges pass ip6tables by": Broken(
        ("sysctl -qw net.bridge.bridge-nf-call-ip6tables=0",), "bridge rules", "bridge-nf-call-ip6tables is 0"
    ),
    "Docker drops IPv4": Broken(
        ("iptables -P FORWARD DROP",), "forward chain", "the policy of FORWARD is DROP (iptables)", firewall=False
    ),
    "Docker drops IPv6": Broken(
        ("ip6tables -P FORWARD DROP",), "forward chain", "the policy of FORWARD is DROP (ip6tables)", firewall=False
    ),
    "a firewall rejects what is left": Broken(
        ("iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited",),
        "forward chain",
        "FORWARD ends with REJECT",
        firewall=False,
    ),
    "old tables drop beside new ones": Broken(
        ("iptables-legacy -P FORWARD DROP",), "forward chain", "in iptables-legacy, while plugin firewall writes to"
    ),
    "old tables of IPv6 drop beside new ones": Broken(
        ("ip6tables-legacy -P FORWARD DROP",), "forward chain", "in iptables-legacy, while plugin firewall writes to"
    ),
    "nftables drops": Broken(
        (
            "nft add table inet fw",
            "nft 'add chain inet fw forward { type filter hook forward priority 10 ; policy drop ; }'",
        ),
        "forward chain",
        "the policy of chain inet fw forward is drop",
    ),
    "a second uplink is strict": Broken(("sysctl -qw net.ipv4.conf.all.rp_filter=1",), "rp_filter", "strict on eth1"),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """A node without Docker, and a network configuration."""

    netns: Netns
    dirs: NodeDirs

    def findings(self) -> list[Finding]:
        """Return doctor's findings on the network of this namespace."""
        config = Config(cni_conf_dir=self.dirs.cni_conf, cni_bin_dir=(self.dirs.cni_bin,))
        return self.netns.call(lambda: [*check_here(), *check_forwarding(config)])

    def write(self, conflist: JsonObject) -> None:
        """Configure a network."""
        (self.dirs.cni_conf / "10-pods.conflist").write_bytes(msgspec.json.encode(conflist))

    def run(self, command: str) -> None:
        """Run a shell command in this namespace."""
        done = subprocess.run([*self.netns.prefix, "sh", "-ec", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.fixture
def machine(node_dirs: NodeDirs) -> Iterator[Machine]:
    """A healthy node with two uplinks; the first has the default route."""
    with new_netns(Path(tempfile.mkdtemp(dir=node_dirs.netns)) / "node") as netns:
        made = Machine(netns, node_dirs)
        made.write(with_ipv6(example("10-bridge.conflist")))
        for number in (0, 1):
            made.run(f"ip link add eth{number} type veth peer name outer{number}")
            made.run(f"ip address add 192.168.{number}.2/24 dev eth{number}")
            made.run(f"ip link set eth{number} up; ip link set outer{number} up")
        made.run("ip route add default via 192.168.0.1")
        for setting, value in READY.items():
            netns.set(setting, value)
        yield made


def problems(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "ok"]


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_each_fault_and_its_advice_repairs_it(machine: Machine, name: str) -> None:
    broken = BROKEN[name]
    if not broken.firewall:
        machine.write(without_firewall(with_ipv6(example("10-bridge.conflist"))))
    assert problems(machine.findings()) == []

    for command in broken.breaks:
        machine.run(command)
    (problem,) = problems(machine.findings())
    machine.run(
        problem.advice.partition(";")[0] if "nft '" not in problem.advice else problem.advice.rpartition(";")[0]
    )

    assert problem.subject == broken.subject
    assert broken.names in problem.text
    assert problems(machine.findings()) == []


def test_doctor_reports_a_kernel_without_br_netfilter(machine: Machine, tmp_path: Path) -> None:
    sysctls = tmp_path / "sys"
    shutil.copytree(
        "/proc/sys/net/ipv6/conf/all", sysctls / "net/ipv6/conf/all", ignore=shutil.ignore_patterns("stable*")
    )
    (sysctls / "net/ipv6/conf/all/forwarding").write_text("1")
    config = Config(cni_conf_dir=machine.dirs.cni_conf, cni_bin_dir=(machine.dirs.cni_bin,))

    (problem,) = problems(machine.netns.call(lambda: list(check_forwarding(config, sysctls=sysctls))))

    assert problem.subject == "br_netfilter"
    assert shlex.split(problem.advice)[:2] == ["modprobe", "br_netfilter;"]


def test_doctor_reports_a_bridge_without_hairpin(machine: Machine) -> None:
    conflist = with_ipv6(example("10-bridge.conflist"))
    del conflist["plugins"][0]["hairpinMode"]
    machine.write(conflist)

    (problem,) = problems(machine.findings())

    assert problem.subject == "host ports"
    assert '"hairpinMode": true' in problem.advice
    assert str(machine.dirs.cni_conf / "10-pods.conflist") in problem.advice


def test_doctor_finds_no_problem_on_a_stock_node(stock: Lab) -> None:
    stock.use(with_ipv6(example("10-bridge.conflist")))
    with two_pods(stock, families=(4, 6)):
        said = doctor(stock.served, netns=stock.node)

    found = levels(said.stdout)
    subjects = (
        "forwarding",
        "ipv6 forward",
        "br_netfilter",
        "bridge rules",
        "forward chain",
        "host ports",
        "pod network",
    )
    assert {subject: found[subject] for subject in subjects} == dict.fromkeys(subjects, "ok")
    assert said.returncode == 0


def test_doctor_reports_a_network_without_the_firewall_plugin(stock: Lab) -> None:
    stock.use(without_firewall(with_ipv6(example("10-bridge.conflist"))))

    said = doctor(stock.served, netns=stock.node)

    assert levels(said.stdout)["forward chain"] == "warn"
    assert 'add {"type": "firewall"}' in said.stdout
    assert said.returncode == 0
