"""Network interfaces inside a pod's namespace."""

import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shim.base.atomic_files import failing_as
from shim.netns.enter import in_netns, in_netns_of
from shim.netns.pin import is_pinned

_LOOPBACK = "lo"
_NO_IPV6 = Path(f"/proc/sys/net/ipv6/conf/{_LOOPBACK}/disable_ipv6")
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("16sH22x")
"""struct ifreq with the flags of an interface (netdevice(7))."""


def ensure_loopback_up(path: Path, *, with_ipv6: bool = True) -> None:
    """Bring `lo` of the namespace pinned on `path` up, as the CNI `loopback` plugin would; idempotent.

    `with_ipv6` switches ::1 on, which Engine 20.10 switches off in containers without a network of its own; without it,
    it stays as it is.
    """
    in_netns(path, lambda: _ensure_up_here(path, with_ipv6=with_ipv6))


def ensure_loopback_up_of(pid: int, *, confirmed: Callable[[], bool], with_ipv6: bool = True) -> None:
    """Do the same in the namespace of a process, which is not pinned; see `in_netns_of`."""
    path = Path(f"/proc/{pid}/ns/net")
    in_netns_of(pid, lambda: _ensure_up_here(path, with_ipv6=with_ipv6), confirmed=confirmed)


def has_interface(path: Path, name: str) -> bool:
    """Return whether there is an interface of this name in the namespace pinned on `path`; False without a pin."""
    return is_pinned(path) and in_netns(path, lambda: name in {found for _, found in socket.if_nameindex()})


def _ensure_up_here(path: Path, *, with_ipv6: bool) -> None:
    with failing_as(f"bring up interface {_LOOPBACK} in {path}"):
        _bring_up(_LOOPBACK)
        if not with_ipv6:
            return
        # Missing where the kernel was started without IPv6. Unlike /sys, /proc/sys shows the namespace of who opens it.
        with suppress(FileNotFoundError):
            _NO_IPV6.write_text("0")


def _bring_up(name: str) -> None:
    # By ioctl: pyroute2 takes 9.5 MiB of memory, and some milliseconds for each pod whose ADD begins before runc has
    # brought lo up. Not by /sys/class/net, which shows the namespace it was mounted in.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
        _, flags = _IFREQ.unpack(answer)
        if not flags & _IFF_UP:
            fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags | _IFF_UP))
