"""Checks that never wait for a disk, a process or a network."""

import os
from collections.abc import Iterator
from pathlib import Path

from shim.base.proc import to_text
from shim.doctor.findings import Finding
from shim.domain.errors import reason_of

_FORWARDING = "net/ipv4/ip_forward"


def check_here(*, sysctls: Path = Path("/proc/sys")) -> Iterator[Finding]:
    """Yield the findings about the user and the kernel."""
    yield _root(os.geteuid())
    yield _forwarding(sysctls)


def _root(uid: int) -> Finding:
    if uid == 0:
        return Finding("ok", "user", "root")
    return Finding("FAIL", "user", f"uid {uid} cannot make network namespaces or read Docker's files", "run as root")


def _forwarding(sysctls: Path) -> Finding:
    try:
        value = to_text((sysctls / _FORWARDING).read_bytes().strip())
    except OSError as error:
        return Finding("warn", "forwarding", f"{sysctls / _FORWARDING}: {reason_of(error)}")
    if value != "0":
        return Finding("ok", "forwarding", f"net.ipv4.ip_forward is {value}")
    advice = "sysctl -w net.ipv4.ip_forward=1; keep it in /etc/sysctl.d"
    return Finding("warn", "forwarding", "net.ipv4.ip_forward is 0: most pod networks need it", advice)
