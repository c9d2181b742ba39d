"""CNI results of all versions, normalised.

Source: CNI specification, section 5 of 1.0.0 and 1.1.0, "Result" of 0.1.0 to 0.4.0. Versions 0.1.0 and 0.2.0 have an
address for each family (`ip4`, `ip6`) and no interfaces. 0.3.0 to 0.4.0 have lists, and each address has a redundant
`version`. 1.1.0 adds fields to interfaces and routes.
"""

from ipaddress import ip_interface
from typing import Any

import msgspec


class ResultError(ValueError):
    """A malformed result; the message names the position."""


class Interface(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network interface that a plugin created or found."""

    name: str
    sandbox: str | None = None
    """The interface's network namespace; None or empty on the host."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address that a plugin assigned."""

    ip: str
    """The address without a prefix length."""
    interface: int | None = None
    """Index into `Result.interfaces`, if the plugin gives it."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a CNI result that a pod needs, in the plugin's order.

    Gateways and routes are left out, because the plugin has set them up, and DNS, because Kubernetes configures it.
    """

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[Address, ...] = ()


class _OldIp(msgspec.Struct):
    ip: str


class _OldResult(msgspec.Struct):
    """A result of version 0.1.0 or 0.2.0."""

    ip4: _OldIp | None = None
    ip6: _OldIp | None = None


class _Ip(msgspec.Struct):
    address: str
    interface: int | None = None


class _ListResult(msgspec.Struct):
    """A result of version 0.3.0 or later. Lists may be null, because Go prints an empty list so."""

    interfaces: tuple[Interface, ...] | None = None
    ips: tuple[_Ip, ...] | None = None


def result_from_json(raw: dict[str, Any]) -> Result:
    """Normalise a result. Raise ResultError if it is malformed."""
    try:
        # The keys decide: some plugins print no version, or the version of their library.
        if "ips" not in raw and ("ip4" in raw or "ip6" in raw):
            return _from_old(msgspec.convert(raw, _OldResult))
        return _from_lists(msgspec.convert(raw, _ListResult))
    except ValueError as error:
        raise ResultError(str(error)) from error


def pod_ips(result: Result, *, ifname: str) -> list[str]:
    """Return the pod's addresses, in the plugin's order: those on `ifname`, or else all addresses in a sandbox.

    An address without an interface counts as an address on `ifname`: older versions have no interfaces, and several
    networks omit the index. Addresses on other interfaces are left out, because a plugin for several networks may list
    them first, and the kubelet takes the first address for the pod's.
    """
    named = [address.ip for address in result.ips if _is_on(ifname, address, result.interfaces)]
    return named or [address.ip for address in result.ips if _in_sandbox(address, result.interfaces)]


def _is_on(ifname: str, address: Address, interfaces: tuple[Interface, ...]) -> bool:
    return address.interface is None or interfaces[address.interface].name == ifname


def _in_sandbox(address: Address, interfaces: tuple[Interface, ...]) -> bool:
    return address.interface is not None and bool(interfaces[address.interface].sandbox)


def _from_old(old: _OldResult) -> Result:
    return Result(ips=tuple(_address(ip.ip, interface=None) for ip in (old.ip4, old.ip6) if ip is not None))


def _from_lists(new: _ListResult) -> Result:
    interfaces = new.interfaces or ()
    for index, ip in enumerate(new.ips or ()):
        if ip.interface is not None and not 0 <= ip.interface < len(interfaces):
            raise ResultError(f"ips[{index}] is on interface {ip.interface} of {len(interfaces)}")
    return Result(
        interfaces=interfaces,
        ips=tuple(_address(ip.address, interface=ip.interface) for ip in new.ips or ()),
    )


def _address(cidr: str, *, interface: int | None) -> Address:
    return Address(ip=str(ip_interface(cidr).ip), interface=interface)
