"""Checks that the processes of a checkpoint have no more rights than a new container on this node.

criu restores the original rights of processes. The checkpoint's node may have confined them less: without AppArmor,
without Docker's seccomp profile, or with higher limits.
"""

from __future__ import annotations

from shim.oci_runtime.order import OrderError

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PATHS = ("maskedPaths", "readonlyPaths")


def check(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Compare a checkpoint's OCI configuration with its new container's. Raise OrderError for additional rights."""
    for excess in (*_of_process(before["process"], now["process"]), *_of_linux(before["linux"], now["linux"])):
        raise OrderError(f"the processes of its checkpoint have more rights than a new container: {excess}")


def _of_process(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    allowed = now.get("capabilities") or {}
    for kind, names in (before.get("capabilities") or {}).items():
        if more := sorted(set(names) - set(allowed.get(kind) or ())):
            yield f"{kind} capabilities {', '.join(more)}"
    if now.get("noNewPrivileges") and not before.get("noNewPrivileges"):
        yield "they may gain privileges"
    if now.get("apparmorProfile", "") != before.get("apparmorProfile", ""):
        yield f"AppArmor profile {before.get('apparmorProfile', '')!r}, not {now.get('apparmorProfile', '')!r}"
    if now.get("selinuxLabel") and not before.get("selinuxLabel"):
        yield "no SELinux label"
    had = {each["type"]: each["hard"] for each in before.get("rlimits") or ()}
    for limit in now.get("rlimits") or ():
        if limit["type"] not in had or had[limit["type"]] > limit["hard"]:
            yield f"{limit['type']} {had.get(limit['type'], 'without a limit')}, not {limit['hard']}"


def _of_linux(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    if now.get("seccomp") and not before.get("seccomp"):
        yield "no seccomp filter"
    for key in _PATHS:
        if now.get(key) and not before.get(key):
            yield f"no {key}"
