from typing import Any

import pytest
from msgspec.structs import replace

from shim.pod import addresses
from shim.sandbox.network import asked_disable_ipv6
from tests.checkpoint.samples import BEFORE_ADD, CONNECTED, INTENT, RELEASED


def test_addresses_come_from_the_cni_result() -> None:
    assert addresses(None) == addresses(BEFORE_ADD) == addresses(RELEASED) == []
    assert addresses(replace(CONNECTED, network=replace(INTENT, result={"ips": [{"address": "10.1.0.7/24"}]}))) == [
        "10.1.0.7"
    ]


@pytest.mark.parametrize(
    "result",
    [{"ips": [{"address": "10.1.0.7/24", "interface": 2}]}, {"ips": [{"address": "10.1.0.700"}]}],
    ids=["an interface that is not there", "a malformed address"],
)
def test_an_unreadable_result_has_no_addresses(result: dict[str, Any]) -> None:
    assert addresses(replace(CONNECTED, network=replace(INTENT, result=result))) == []


@pytest.mark.parametrize(
    ("sysctls", "asked"),
    [
        ({}, {}),
        ({"net.ipv6.conf.all.disable_ipv6": "1"}, {"all": "1"}),
        ({"net.ipv6.conf.default.disable_ipv6": "0"}, {"default": "0"}),
        ({"net.ipv4.ip_forward": "1", "net/ipv6/conf/lo/disable_ipv6": "1"}, {"lo": "1"}),
        ({"net.ipv6.conf.lo.forwarding": "1", "net.ipv6.conf.a.b.disable_ipv6": "1"}, {}),
    ],
)
def test_a_pod_may_disable_ipv6(sysctls: dict[str, str], asked: dict[str, str]) -> None:
    assert asked_disable_ipv6(sysctls) == asked
