"""The routes of the current network namespace."""

import ipaddress
import socket
from dataclasses import dataclass

_MAIN_TABLE = 254
"""RT_TABLE_MAIN (rtnetlink(7)), which has no routes for local and multicast addresses."""
_UNICAST = 1
"""RTN_UNICAST, a route to an interface."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Route:
    """A route to a network."""

    destination: Network
    interface: str


def routes() -> list[Route]:
    """Return the routes to networks, without default routes and routes to single addresses.

    Raise OSError if the kernel refuses netlink.
    """
    # Imported on first use because of its cost: see shim.netns.syscalls. It has no type stubs.
    from pyroute2 import IPRoute, NetlinkError  # type: ignore[import-untyped] # noqa: PLC0415

    try:
        with IPRoute() as netlink:
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in netlink.get_links()}
            found = [
                Route(ipaddress.ip_network(f"{route.get_attr('RTA_DST')}/{route['dst_len']}"), names[index])
                for family in (socket.AF_INET, socket.AF_INET6)
                for route in netlink.get_routes(family=family, table=_MAIN_TABLE)
                if route["type"] == _UNICAST and route["dst_len"] and (index := route.get_attr("RTA_OIF")) in names
            ]
    except NetlinkError as error:
        raise OSError(error.code, f"read routes: {error}") from error
    return [route for route in found if route.destination.num_addresses > 1]
