"""The routes of a real namespace."""

import ipaddress
from pathlib import Path

from pyroute2 import IPRoute  # type: ignore[import-untyped] # it ships no types

from shim.netns.enter import in_netns
from shim.netns.links import prepare_links
from shim.netns.routes import Route, routes

LOOPBACK = 1
"""The index of `lo` in each namespace."""


def test_a_new_namespace_has_no_routes(pinned: Path) -> None:
    prepare_links(pinned, disable_ipv6={})
    assert in_netns(pinned, routes) == []


def test_default_routes_and_routes_to_single_addresses_are_left_out(pinned: Path) -> None:
    prepare_links(pinned, disable_ipv6={})

    def add() -> None:
        with IPRoute() as netlink:
            for destination in ("10.1.0.0/16", "10.2.3.4/32", "0.0.0.0/0", "fd00:1::/64", "fd00:2::1/128"):
                netlink.route("add", dst=destination, oif=LOOPBACK)
            netlink.route("add", dst="10.3.0.0/16", type="blackhole")

    in_netns(pinned, add)
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00:1::/64")]
    assert in_netns(pinned, routes) == [Route(network, "lo") for network in networks]
