"""The rule that keeps pods away from loopback addresses, in a real namespace."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shim.domain.errors import FailedPrecondition
from shim.netns.enter import in_netns
from shim.netns.loopback_guard import has_guard, install_guard, remove_guard

SHOWN = """\
table ip pydockershim {
	chain loopback {
		type filter hook prerouting priority raw; policy accept;
		ip daddr 127.0.0.0/8 ip saddr != 127.0.0.0/8 iif != "lo" counter packets 0 bytes 0 drop
	}
}
"""


def run(path: Path, *command: str) -> str:
    return subprocess.run(["nsenter", f"--net={path}", *command], check=True, capture_output=True, text=True).stdout


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def test_repeated_installation_leaves_one_rule(pinned: Path) -> None:
    need("nft")
    assert not in_netns(pinned, has_guard)

    in_netns(pinned, install_guard)
    in_netns(pinned, install_guard)

    assert in_netns(pinned, has_guard)
    assert run(pinned, "nft", "list", "ruleset") == SHOWN


@pytest.mark.parametrize("taking", ["flush ruleset", "delete table ip pydockershim", "flush table ip pydockershim"])
def test_a_lost_rule_is_detected_and_installed_again(pinned: Path, taking: str) -> None:
    need("nft")
    in_netns(pinned, install_guard)

    run(pinned, "nft", *taking.split())

    assert not in_netns(pinned, has_guard)
    in_netns(pinned, install_guard)
    assert run(pinned, "nft", "list", "ruleset") == SHOWN


def test_other_tables_are_not_counted_and_stay(pinned: Path) -> None:
    need("nft")
    others = "table ip pydockershim-too {\n\tchain c {\n\t\taccept\n\t}\n}\n"
    run(pinned, "nft", others)
    assert not in_netns(pinned, has_guard)

    in_netns(pinned, install_guard)
    in_netns(pinned, remove_guard)

    assert run(pinned, "nft", "list", "ruleset") == others


def test_the_rule_can_be_removed_repeatedly(pinned: Path) -> None:
    in_netns(pinned, install_guard)

    in_netns(pinned, remove_guard)
    in_netns(pinned, remove_guard)

    assert not in_netns(pinned, has_guard)


WITHOUT_NFTABLES = """
from shim.netns import nftables
from shim.netns.loopback_guard import has_guard, install_guard, remove_guard

nftables._NETLINK_NETFILTER = 31  # a protocol that no kernel has
steps = [has_guard]
steps += [install_guard, install_guard, has_guard]
for step in steps:
    print(step())
"""
RULE = (
    "-A PREROUTING ! -s 127.0.0.0/8 -d 127.0.0.0/8 ! -i lo -m comment --comment "
    '"pydockershim: loopback of the node" -j DROP'
)


def test_a_kernel_without_nftables_has_the_rule_in_iptables(pinned: Path) -> None:
    need("iptables")
    run(pinned, sys.executable, "-c", WITHOUT_NFTABLES)
    assert [rule for rule in run(pinned, "iptables", "-t", "raw", "-S").splitlines() if rule[:2] == "-A"] == [RULE]

    removed = run(pinned, sys.executable, "-c", WITHOUT_NFTABLES + "remove_guard(); remove_guard(); print(has_guard())")

    assert removed.split() == ["True", "None", "None", "True", "False"]
    assert RULE not in run(pinned, "iptables", "-t", "raw", "-S")


def test_a_kernel_without_nftables_and_iptables_is_an_error(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("shim.netns.nftables._NETLINK_NETFILTER", 31)

    with pytest.raises(FailedPrecondition, match=r"nftables: protocol not supported; iptables: .*is not installed"):
        in_netns(pinned, install_guard)
