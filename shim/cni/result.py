"""CNI results of every version in one shape.

Source: CNI specification, section 5 of 1.0.0 and 1.1.0, "Result" of 0.1.0 to 0.4.0. Versions 0.1.0 and 0.2.0 know one
address per family (`ip4`, `ip6`) and no interfaces; 0.3.0 to 0.4.0 add lists, each address with a redundant `version`;
1.1.0 adds fields to interfaces and routes.
"""

from ipaddress import ip_interface
from typing import Any

import msgspec


class ResultError(ValueError):
    """A result that is not CNI; the message names the place in it."""


class Interface(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network interface a plugin made or found."""

    name: str
    mac: str | None = None
    mtu: int | None = None
    sandbox: str | None = None
    """Network namespace it is in; none or empty on the host."""
    socket_path: str | None = None
    pci_id: str | None = msgspec.field(default=None, name="pciID")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address assigned by a plugin."""

    ip: str
    """Without a prefix length."""
    interface: int | None = None
    """Index into `Result.interfaces`; None where the plugin has none."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod needs of a CNI result; lists keep the order of the plugin.

    Gateways, routes and name resolution are only checked for their form: the plugin has set up the former two, and
    Kubernetes has a name resolution of its own.
    """

    interfaces: tuple[Interface, ...] = ()
    ips: tuple[Address, ...] = ()


class _Route(msgspec.Struct):
    dst: str
    gw: str | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


class _Dns(msgspec.Struct):
    nameservers: tuple[str, ...] | None = None
    domain: str | None = None
    search: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


class _OldIp(msgspec.Struct):
    ip: str
    gateway: str | None = None
    routes: tuple[_Route, ...] | None = None


class _OldResult(msgspec.Struct):
    """0.1.0 and 0.2.0."""

    ip4: _OldIp | None = None
    ip6: _OldIp | None = None
    dns: _Dns | None = None


class _Ip(msgspec.Struct):
    address: str
    gateway: str | None = None
    interface: int | None = None


class _ListResult(msgspec.Struct):
    """0.3.0 and later. Lists may be null: that is how Go prints an empty one."""

    interfaces: tuple[Interface, ...] | None = None
    ips: tuple[_Ip, ...] | None = None
    routes: tuple[_Route, ...] | None = None
    dns: _Dns | None = None


def result_from_json(raw: dict[str, Any]) -> Result:
    """Normalise the JSON of a result. Raise ResultError when it is none."""
    try:
        # Recognised by the keys: plugins exist that print no version, or that of their library.
        if "ips" not in raw and ("ip4" in raw or "ip6" in raw):
            return _from_old(msgspec.convert(raw, _OldResult))
        return _from_lists(msgspec.convert(raw, _ListResult))
    except ValueError as error:
        raise ResultError(str(error)) from error


def pod_ips(result: Result, *, ifname: str) -> list[str]:
    """Return every address of the pod, without prefix lengths, in plugin order: those on `ifname` if there are any.

    An address without an interface counts as on it: older versions have none, and several networks leave the index
    out. If there is none, every address counts whose interface is in a sandbox. A plugin for several networks may list
    the addresses of further interfaces, and list them first, and a kubelet takes the first address for the pod's.
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
