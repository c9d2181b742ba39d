from typing import Any

import pytest

from shim.cni.result import Address, Interface, Result, ResultError, pod_ips, result_from_json

NETNS = "/run/netns/cri-1"
DNS = {"nameservers": ["10.1.0.1"], "domain": "local"}

OLD = {
    "ip6": {"ip": "fd00::2/64"},
    "ip4": {"ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
    "dns": DNS,
}
OLD_READ = Result(ips=(Address(ip="10.1.0.2"), Address(ip="fd00::2")))

LISTS: dict[str, Any] = {
    "interfaces": [{"name": "cni0", "mac": "0a:0a"}, {"name": "eth0", "mac": "0b:0b", "sandbox": NETNS}],
    "ips": [
        {"address": "fd00::2/64", "interface": 1},
        {"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1},
    ],
    "routes": [{"dst": "0.0.0.0/0"}],
    "dns": DNS,
}
LISTS_READ = Result(
    interfaces=(Interface(name="cni0"), Interface(name="eth0", sandbox=NETNS)),
    ips=(Address(ip="fd00::2", interface=1), Address(ip="10.1.0.2", interface=1)),
)


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"cniVersion": "0.1.0", **OLD}, OLD_READ),
        ({"cniVersion": "0.2.0", **OLD}, OLD_READ),
        (OLD, OLD_READ),
        ({"cniVersion": "0.3.1", **LISTS, "ips": [{"version": "6", **LISTS["ips"][0]}, LISTS["ips"][1]]}, LISTS_READ),
        ({"cniVersion": "0.4.0", **LISTS}, LISTS_READ),
        ({"cniVersion": "1.0.0", **LISTS}, LISTS_READ),
        ({"cniVersion": "1.1.0", **LISTS}, LISTS_READ),
        ({"cniVersion": "1.0.0"}, Result()),
        ({"interfaces": None, "ips": None, "routes": None, "dns": None}, Result()),
        ({"dns": {}, "unknown": {"kept": "not"}}, Result()),
    ],
    ids=["0.1.0", "0.2.0", "old-unversioned", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "empty", "nulls", "unknown-keys"],
)
def test_results_of_all_versions_are_normalised(raw: dict[str, Any], read: Result) -> None:
    assert result_from_json(raw) == read


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"ips": "10.1.0.2/24"}, "Expected `array | null`, got `str` - at `$.ips`"),
        ({"ips": [{"gateway": "10.1.0.1"}]}, "missing required field `address` - at `$.ips[0]`"),
        ({"ips": [{"address": "10.1.0.300/24"}]}, "'10.1.0.300/24' does not appear to be an IPv4 or IPv6"),
        (
            {"ips": [{"address": "10.1.0.2/24", "interface": 1}], "interfaces": [{"name": "eth0"}]},
            "ips[0] is on interf",
        ),
        ({"ips": [{"address": "10.1.0.2/24", "interface": -1}], "interfaces": [{"name": "eth0"}]}, "ips[0] is on"),
        ({"ips": [{"address": "10.1.0.2/24", "interface": 0}]}, "ips[0] is on interface 0 of 0"),
        ({"ip4": {"ip": "nonsense"}}, "'nonsense' does not appear"),
        ({"ip4": "10.1.0.2/24"}, "Expected `object | null`"),
        ({"interfaces": [{"mac": "0a:0a"}]}, "missing required field `name`"),
    ],
)
def test_the_error_of_a_malformed_result_has_the_position(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ResultError) as raised:
        result_from_json(raw)

    assert words in str(raised.value)


def ips(*, interfaces: list[dict[str, Any]], on: list[int | None]) -> list[str]:
    addresses = [{"address": f"10.1.0.{number}/24", "interface": index} for number, index in enumerate(on, start=1)]
    return pod_ips(result_from_json({"interfaces": interfaces, "ips": addresses}), ifname="eth0")


def test_pod_ips_keep_the_order_of_the_plugin() -> None:
    assert pod_ips(LISTS_READ, ifname="eth0") == ["fd00::2", "10.1.0.2"]
    assert pod_ips(OLD_READ, ifname="eth0") == ["10.1.0.2", "fd00::2"]


def test_addresses_of_host_interfaces_are_not_the_pods() -> None:
    interfaces = [{"name": "veth1"}, {"name": "net1", "sandbox": NETNS}, {"name": "net2", "sandbox": NETNS}]

    assert ips(interfaces=interfaces, on=[0, 1, 2, 1]) == ["10.1.0.2", "10.1.0.3", "10.1.0.4"]


def test_addresses_of_further_interfaces_are_left_out() -> None:
    interfaces = [{"name": "net1", "sandbox": NETNS}, {"name": "eth0", "sandbox": NETNS}]

    assert ips(interfaces=interfaces, on=[0, 1]) == ["10.1.0.2"]
    assert ips(interfaces=interfaces, on=[0, None]) == ["10.1.0.2"]
    assert ips(interfaces=interfaces, on=[1, None, 0]) == ["10.1.0.1", "10.1.0.2"]


def test_addresses_without_an_interface_or_a_sandbox_count() -> None:
    assert ips(interfaces=[{"name": "cali123"}], on=[None]) == ["10.1.0.1"]
    assert ips(interfaces=[{"name": "eth0", "sandbox": ""}, {"name": "lxc1"}], on=[0, 1]) == ["10.1.0.1"]
