"""Network interfaces inside a pod's namespace."""

import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shim.base.atomic_files import failing_as
from shim.domain.errors import ShimError
from shim.netns.enter import in_netns, in_netns_of
from shim.netns.pin import is_pinned

_LOOPBACK = "lo"
_NO_IPV6 = Path(f"/proc/sys/net/ipv6/conf/{_LOOPBACK}/disable_ipv6")
_SIOCGIFFLAGS = 0x8913
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
    with failing_as(f"read interface {_LOOPBACK} in {path}"):
        if not _is_up(_LOOPBACK):
            _bring_up(_LOOPBACK, path=path)
        if not with_ipv6:
            return
        # Missing where the kernel was started without IPv6. Unlike /sys, /proc/sys shows the namespace of who opens it.
        with suppress(FileNotFoundError):
            _NO_IPV6.write_text("0")


def _is_up(name: str) -> bool:
    # An ioctl: Docker has brought lo up in nearly every case, and pyroute2 need not be loaded then. Not
    # /sys/class/net, which shows the namespace it was mounted in.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
    _, flags = _IFREQ.unpack(answer)
    return bool(flags & _IFF_UP)


def _bring_up(name: str, *, path: Path) -> None:
    # Loaded on first use, for what it costs: see shim.netns.syscalls. It has no type stubs.
    from pyroute2 import IPRoute, NetlinkError  # type: ignore[import-untyped] # noqa: PLC0415

    # This thread is in the namespace already, hence no `netns=`, which would fork the gRPC process.
    try:
        with IPRoute() as netlink:
            netlink.link("set", index=socket.if_nametoindex(name), state="up")
    except NetlinkError as error:
        raise ShimError(f"bring up interface {name} in {path}: {error}") from error
