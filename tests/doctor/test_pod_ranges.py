"""Addresses of pods that are those of another network of the node."""

import errno
import ipaddress
import json
import os
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from shim.config.model import Config
from shim.doctor import pod_ranges
from shim.doctor.findings import Finding
from shim.domain.errors import reason_of
from shim.netns.routes import Route

Check = Callable[..., list[Finding]]


@pytest.fixture
def check(config: Config, monkeypatch: pytest.MonkeyPatch) -> Check:
    config.cni_conf_dir.mkdir(exist_ok=True)
    config.cni_bin_dir[0].mkdir(exist_ok=True)
    for name in ("bridge", "macvlan"):
        (config.cni_bin_dir[0] / name).touch(mode=0o755)

    def checked(
        *destinations: str, ipam: object = None, by: str = "docker0", pod_cidr: str = "", kind: str = "bridge"
    ) -> list[Finding]:
        """The findings with routes to `destinations` by one interface."""
        plugin = {"type": kind, "bridge": "cni0", "ipam": ipam or {"type": "host-local", "subnet": "10.244.0.0/24"}}
        if pod_cidr:
            plugin["capabilities"] = {"ipRanges": True}
        conflist = {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        (config.cni_conf_dir / "10-pods.conflist").write_text(json.dumps(conflist))
        found = [Route(ipaddress.ip_network(destination), by) for destination in destinations]
        monkeypatch.setattr(pod_ranges, "routes", lambda: found)
        return list(pod_ranges.check_pod_ranges(replace(config, pod_cidr=pod_cidr)))

    return checked


def levels(findings: Sequence[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_addresses_of_their_own(check: Check) -> None:
    [finding] = check("172.17.0.0/16", "fd00::/64")
    assert finding == Finding("ok", "pod addresses", "10.244.0.0/24 of network pods")


@pytest.mark.parametrize("destination", ["10.0.0.0/8", "10.244.0.0/24", "10.244.0.128/25"])
def test_those_of_another_network(check: Check, destination: str, config: Config) -> None:
    [finding] = check("172.17.0.0/16", destination)
    assert finding.level == "warn"
    assert f"10.244.0.0/24 of network pods overlaps {destination}, which is reached by docker0" in finding.text
    assert f"{config.cni_conf_dir}/10-pods.conflist" in finding.advice


def test_the_bridge_of_the_pods_is_no_other_network(check: Check) -> None:
    assert levels(check("10.244.0.0/24", by="cni0")) == ["ok"]


def test_pods_on_the_nodes_network_have_addresses_of_it(check: Check) -> None:
    assert check("10.244.0.0/16", by="eth0", kind="macvlan") == []


def test_both_families(check: Check) -> None:
    ranges = [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:1::/64"}]]
    assert levels(check("fd00::/16", ipam={"type": "host-local", "ranges": ranges})) == ["warn"]


def test_the_range_that_the_kubelet_sent(check: Check) -> None:
    assert levels(check("10.1.0.0/16", ipam={"type": "host-local"}, pod_cidr="10.1.2.0/24")) == ["warn"]


def test_addresses_that_nobody_has_written_down(check: Check) -> None:
    assert check("10.0.0.0/8", ipam={"type": "dhcp"}) == []


def test_a_node_without_a_network(config: Config) -> None:
    assert list(pod_ranges.check_pod_ranges(config)) == []


def test_routes_that_cannot_be_read(check: Check, monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    check()
    refusal = PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def refuse() -> list[Route]:
        raise refusal

    monkeypatch.setattr(pod_ranges, "routes", refuse)
    [finding] = pod_ranges.check_pod_ranges(config)
    assert (finding.level, finding.text) == ("warn", f"the node's routes cannot be read: {reason_of(refusal)}")
