"""Network interfaces inside a pod's namespace."""

import fcntl
import socket
import struct
from collections.abc import Callable, Mapping
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
    """Bring `lo` of the namespace pinned on `path` up, as the CNI `loopback` plugin would, and switch IPv6 on.

    Done already is fine. Engine 20.10 switches IPv6 off in containers without a network of its own: for `all`, by which
    the kernel sets each interface that is there, and `default`, which those get that come later. `disable_ipv6` has
    what the pod itself has asked for, by these names and those of interfaces.
    """
    in_netns(path, lambda: _prepare_here(path, disable_ipv6))


def prepare_links_of(pid: int, *, confirmed: Callable[[], bool], disable_ipv6: Mapping[str, str]) -> None:
    """Do the same in the namespace of a process, which is not pinned; see `in_netns_of`."""
    path = Path(f"/proc/{pid}/ns/net")
    in_netns_of(pid, lambda: _prepare_here(path, disable_ipv6), confirmed=confirmed)


def has_interface(path: Path, name: str) -> bool:
    """Return whether there is an interface of this name in the namespace pinned on `path`; False without a pin."""
    return is_pinned(path) and in_netns(path, lambda: name in {found for _, found in socket.if_nameindex()})


def _prepare_here(path: Path, disable_ipv6: Mapping[str, str]) -> None:
    with failing_as(f"bring up interface {_LOOPBACK} in {path}"):
        _bring_up(_LOOPBACK)
    # `all` comes first: the kernel sets `default` and each interface by it.
    for name, value in {"all": "0", **disable_ipv6}.items():
        # Missing where the kernel was started without IPv6. Unlike /sys, /proc/sys shows the namespace of who opens it.
        with failing_as(f"set disable_ipv6 of {name} in {path}"), suppress(FileNotFoundError):
            (_IPV6 / name / "disable_ipv6").write_text(value)


def _bring_up(name: str) -> None:
    # By ioctl: pyroute2 takes 9.5 MiB of memory, and some milliseconds for each pod whose ADD begins before runc has
    # brought lo up. Not by /sys/class/net, which shows the namespace it was mounted in.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
        _, flags = _IFREQ.unpack(answer)
        if not flags & _IFF_UP:
            fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags | _IFF_UP))
