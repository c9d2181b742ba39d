import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from shim.cni.host_ports import RULE, accept_host_ports, admin_chain

PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def conflist(*plugins: dict[str, Any]) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}, *plugins]}


@pytest.fixture
def iptables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with fakes of iptables and ip6tables, which keep their rules in a file."""
    for name in ("iptables", "ip6tables"):
        rules = shlex.quote(str(tmp_path / f"{name}.rules"))
        program = tmp_path / name
        program.write_text(
            "#!/bin/sh\nshift; verb=$1; shift\n"
            f'case $verb in --check) grep -qxF -- "$*" {rules};; --append) echo "$*" >>{rules};; esac\n'
        )
        program.chmod(0o755)
        (tmp_path / f"{name}.rules").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("plugins", "chain"),
    [
        ([PORTMAP, {"type": "firewall"}], "CNI-ADMIN"),
        ([PORTMAP, {"type": "firewall", "backend": "iptables"}], "CNI-ADMIN"),
        ([PORTMAP, {"type": "firewall", "iptablesAdminChainName": "PODS"}], "PODS"),
        ([PORTMAP, {"type": "firewall", "backend": "firewalld"}], ""),
        ([PORTMAP], ""),
        ([{"type": "firewall"}], ""),
    ],
)
def test_the_chain_depends_on_the_plugins_of_the_list(plugins: list[dict[str, Any]], chain: str) -> None:
    assert admin_chain(conflist(*plugins)) == chain


def test_the_rule_is_appended_once_for_each_family(iptables: Path) -> None:
    network = conflist(PORTMAP, {"type": "firewall"})

    accept_host_ports(network, addresses=["10.244.0.2"])
    accept_host_ports(network, addresses=["10.244.0.3", "fd00::3"])

    rule = " ".join(["CNI-ADMIN", *RULE])
    assert (iptables / "iptables.rules").read_text().splitlines() == [rule]
    assert (iptables / "ip6tables.rules").read_text().splitlines() == [rule]


def test_a_network_without_the_firewall_plugin_gets_no_rule(iptables: Path) -> None:
    accept_host_ports(conflist(PORTMAP), addresses=["10.244.0.2"])

    assert (iptables / "iptables.rules").read_text() == ""


def test_missing_iptables_is_only_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    accept_host_ports(conflist(PORTMAP, {"type": "firewall"}), addresses=["10.244.0.2"])


@pytest.mark.parametrize("body", ["exit 2", "exit 1", "kill -9 $$"])
def test_a_failure_of_iptables_is_only_logged(iptables: Path, body: str) -> None:
    (iptables / "iptables").write_text(f"#!/bin/sh\n{body}\n")

    accept_host_ports(conflist(PORTMAP, {"type": "firewall"}), addresses=["10.244.0.2"])

    assert (iptables / "iptables.rules").read_text() == ""
