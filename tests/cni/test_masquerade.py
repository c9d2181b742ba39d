"""Leftover rules of the real iptables, in a new network namespace."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.cni.masquerade import masquerades, remove_masquerade
from shim.netns.enter import in_netns
from tests.mounts import need_root

GONE, OTHER = "a" * 64, "b" * 64
CHAINS = {GONE: "CNI-" + "a" * 24, OTHER: "CNI-" + "b" * 24}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    need_root()
    path = tmp_path / "ns"
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    asked = ["nsenter", f"--net={path}", "iptables", "-t", "nat", "-S"]
    if subprocess.run(asked, check=False, capture_output=True).returncode:
        subprocess.run(["umount", path], check=True)
        pytest.skip("no iptables here")
    yield path
    subprocess.run(["umount", path], check=True)


def nat(place: Path, *arguments: str) -> str:
    command = ["nsenter", f"--net={place}", "iptables", "-t", "nat", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def masquerade(place: Path, container_id: str, address: str) -> None:
    comment = ["-m", "comment", "--comment", f'name: "pods" id: "{container_id}"']
    chain = CHAINS[container_id]
    nat(place, "-N", chain)
    nat(place, "-A", chain, "-d", "10.1.0.0/16", "-j", "ACCEPT", *comment)
    nat(place, "-A", chain, "!", "-d", "224.0.0.0/4", "-j", "MASQUERADE", *comment)
    nat(place, "-A", "POSTROUTING", "-s", address, "-j", chain, *comment)


def test_the_rules_of_a_container_and_their_chains_are_removed(place: Path) -> None:
    before = nat(place, "-S")
    masquerade(place, OTHER, "10.1.0.3")
    others = nat(place, "-S")
    masquerade(place, GONE, "10.1.0.2")

    for _ in range(2):
        remove_in(place, GONE)
        assert nat(place, "-S") == others
    remove_in(place, OTHER)

    assert nat(place, "-S") == before


def remove_in(place: Path, container_id: str) -> None:
    in_netns(place, lambda: remove_masquerade(container_id))


def test_a_malformed_container_id_removes_nothing(place: Path) -> None:
    masquerade(place, OTHER, "10.1.0.3")
    before = nat(place, "-S")

    for word in ("", "b", OTHER[:-1], ".*"):
        remove_in(place, word)

    assert nat(place, "-S") == before


def test_a_list_masquerades_if_a_plugin_has_ipmasq() -> None:
    assert masquerades(json.loads('{"plugins": [{"type": "bridge", "ipMasq": true}]}'))
    assert not masquerades(json.loads('{"plugins": [{"type": "bridge", "ipMasq": false}, {"type": "portmap"}]}'))
