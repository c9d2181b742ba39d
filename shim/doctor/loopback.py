"""Whether pods get answers from loopback addresses of the node."""

import os
from collections.abc import Iterator
from pathlib import Path

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.domain.errors import FailedPrecondition
from shim.netns.loopback_guard import has_guard

_SUBJECT = "loopback"
_NAMED = 3


def check_loopback(config: Config, *, sysctls: Path = Path("/proc/sys")) -> Iterator[Finding]:
    """Return whether packets for loopback addresses that come from pods are dropped, where the kernel takes any."""
    if config.network_plugin == "none":
        return
    taking = _interfaces_that_take_them(sysctls)
    if not taking:
        yield Finding("ok", _SUBJECT, "no interface takes packets for 127.0.0.0/8 (route_localnet)")
        return
    named = ", ".join(taking[:_NAMED]) + (", ..." if len(taking) > _NAMED else "")
    try:
        is_guarded = has_guard()
    except FailedPrecondition as error:
        yield Finding("warn", _SUBJECT, str(error), "run as root, on a kernel with nftables or iptables")
        return
    if is_guarded:
        yield Finding("ok", _SUBJECT, f"packets of pods for 127.0.0.0/8 are dropped; without that, {named} takes them")
        return
    text = f"{named} takes packets for 127.0.0.0/8 (route_localnet): containers reach services of the node on loopback"
    yield Finding("warn", _SUBJECT, text, "start pydockershim, which drops them")


def _interfaces_that_take_them(sysctls: Path) -> list[str]:
    settings = sorted((sysctls / "net/ipv4/conf").glob("*/route_localnet"))
    return [os.fsencode(path.parent.name).decode(errors="replace") for path in settings if _is_on(path)]


def _is_on(setting: Path) -> bool:
    try:
        return setting.read_bytes().strip() != b"0"
    except OSError:  # the interface has gone
        return False
