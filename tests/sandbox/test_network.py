import pytest

from shim.sandbox.network import forbids_loopback_ipv6


@pytest.mark.parametrize(
    ("sysctls", "forbidden"),
    [
        ({}, False),
        ({"net.ipv6.conf.all.disable_ipv6": "1"}, True),
        ({"net.ipv6.conf.default.disable_ipv6": "1"}, True),
        ({"net.ipv4.ip_forward": "1", "net.ipv6.conf.lo.disable_ipv6": "1"}, True),
        ({"net/ipv6/conf/lo/disable_ipv6": "1"}, True),
        ({"net.ipv6.conf.all.disable_ipv6": "0"}, False),
        ({"net.ipv6.conf.eth0.disable_ipv6": "1", "net.ipv6.conf.lo.forwarding": "1"}, False),
    ],
)
def test_a_pod_may_ask_for_no_ipv6_on_its_loopback(sysctls: dict[str, str], forbidden: bool) -> None:
    assert forbids_loopback_ipv6(sysctls) is forbidden
