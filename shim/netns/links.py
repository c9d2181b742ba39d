"""Network interfaces inside a pod's namespace."""

import errno
import fcntl
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shim.base.atomic_files import failing_as
from shim.netns.enter import in_netns, in_netns_of
from shim.netns.pin import is_pinned

_LOOPBACK = "lo"
_IPV6 = Path("/proc/sys/net/ipv6/conf")
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("16sH22x")
"""struct ifreq with the flags of an interface (netdevice(7))."""


def prepare_links(path: Path, *, disable_ipv6: Mapping[str, str]) -> None:
    """Bring up `lo` in the namespace pinned on `path`, as the CNI plugin `loopback` would, and enable IPv6. Idempotent.

    Engine 20.10 disables IPv6 in containers without a Docker network: through `all`, which sets each present interface,
    and `default`, which sets each later interface. `disable_ipv6` holds the values that the pod asks for, by these two
    names or the name of an interface.
    """
    in_netns(path, lambda: _prepare_here(path, disable_ipv6))


def prepare_links_of(pid: int, *, confirmed: Callable[[], bool], disable_ipv6: Mapping[str, str]) -> None:
    """Like `prepare_links`, in the network namespace of process `pid`; see `in_netns_of`."""
    path = Path(f"/proc/{pid}/ns/net")
    in_netns_of(pid, lambda: _prepare_here(path, disable_ipv6), confirmed=confirmed)


def has_interface(path: Path, name: str) -> bool:
    """Return whether the namespace pinned on `path` has the interface `name`; False without a pin."""
    return is_pinned(path) and in_netns(path, lambda: name in {found for _, found in socket.if_nameindex()})


def missing_addresses(path: Path, addresses: Sequence[str]) -> list[str]:
    """Return which addresses no interface in the namespace pinned on `path` has. Raise OSError, FailedPrecondition."""
    return in_netns(path, lambda: [address for address in addresses if not _is_here(address)])


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.bind((address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise
    return True


def _prepare_here(path: Path, disable_ipv6: Mapping[str, str]) -> None:
    with failing_as(f"bring up interface {_LOOPBACK} in {path}"):
        _bring_up(_LOOPBACK)
    # `all` comes first, because it also sets `default` and each interface.
    for name, value in {"all": "0", **disable_ipv6}.items():
        # The file is missing if the kernel was started without IPv6. /proc/sys shows the namespace of the process that
        # opens it; /sys does not.
        with failing_as(f"set disable_ipv6 of {name} in {path}"), suppress(FileNotFoundError):
            (_IPV6 / name / "disable_ipv6").write_text(value)


def _bring_up(name: str) -> None:
    # An ioctl, because pyroute2 takes 9.5 MiB of memory, and some milliseconds for each pod whose ADD begins before
    # runc has brought lo up. /sys/class/net would show the namespace of its mount.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
        _, flags = _IFREQ.unpack(answer)
        if not flags & _IFF_UP:
            fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags | _IFF_UP))
