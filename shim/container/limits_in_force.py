"""The limits in force: from the cgroup of a running container, otherwise the limits that Docker will apply.

This does not call Docker. The functions below take a requested value and the kernel's value, and return the value to
report: the requested value if the kernel only rounded it, otherwise the kernel's value.
"""

import os

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import NO_LIMIT, Limits
from shim.cgroup.files import read
from shim.cgroup.parse import line, numbers, parse_limit
from shim.cgroup.places import Group
from shim.cgroup.shares import DEFAULT_SHARES, may_become, shares_from_weight
from shim.container.cgroup import wanted_resources
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

_PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes; the kernel rounds memory limits down to whole pages."""
_UNLIMITED_PAGES = (1 << 64) - 1
"""The value for no limit, because the CRI's field is unsigned."""


def limits_in_force(rt: Runtime, record: ContainerRecord) -> pb.LinuxContainerResources:
    """Return the limits of a container in force, including external changes.

    Values that the kernel rounds (whole pages, CPU weights) are returned as requested. No limit is 0 if Docker has no
    limit either, otherwise -1.
    """
    requested = wanted_resources(rt, record)
    if requested.memory_limit_in_bytes <= 0:
        requested.memory_limit_in_bytes = requested.memory_swap_limit_in_bytes = 0
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    # A sandboxed runtime creates no cgroup for the container.
    return requested if place is None else _reported(requested, place.group, pid=record.state.pid)


def _reported(requested: pb.LinuxContainerResources, group: Group, *, pid: int) -> pb.LinuxContainerResources:
    reported = pb.LinuxContainerResources()
    reported.CopyFrom(requested)
    _report_limits(requested, group.limits(), reported)
    _report_files(requested, group, reported)
    reported.oom_score_adj = _oom_score(pid, requested=requested.oom_score_adj)
    return reported


def _report_limits(requested: pb.LinuxContainerResources, limits: Limits, reported: pb.LinuxContainerResources) -> None:
    reported.cpu_period = limits.cpu_period or requested.cpu_period
    reported.cpu_quota = _limit(limits.cpu_quota, requested=requested.cpu_quota)
    reported.cpu_shares = _shares(limits, requested=requested.cpu_shares)
    reported.cpuset_cpus = _set(limits.cpuset_cpus, requested=requested.cpuset_cpus)
    reported.cpuset_mems = _set(limits.cpuset_mems, requested=requested.cpuset_mems)
    reported.memory_limit_in_bytes = _pages(limits.memory, requested=requested.memory_limit_in_bytes)
    reported.memory_swap_limit_in_bytes = _pages(limits.memory_swap, requested=requested.memory_swap_limit_in_bytes)


def _report_files(requested: pb.LinuxContainerResources, group: Group, reported: pb.LinuxContainerResources) -> None:
    """Report only cgroup files and huge page sizes that were requested."""
    for key, value in requested.unified.items():
        reported.unified[key] = line(read(group.unified_file(key))) or value
    for limit in reported.hugepage_limits:
        files = group.huge_page_files(limit.page_size)
        found = parse_limit(read(files[0])) if files else None
        if found is not None:
            limit.limit = _UNLIMITED_PAGES if found == NO_LIMIT else found


def _oom_score(pid: int, *, requested: int) -> int:
    text = line(read(f"/proc/{pid}/oom_score_adj"))
    return int(text) if text else requested


def _limit(found: int | None, *, requested: int) -> int:
    unlimited_to_both = found == NO_LIMIT and requested <= 0
    return requested if found is None or unlimited_to_both else found


def _pages(found: int | None, *, requested: int) -> int:
    if found is not None and found <= requested < found + _PAGE:
        return requested
    return _limit(found, requested=requested)


def _shares(limits: Limits, *, requested: int) -> int:
    if limits.cpu_weight is None:
        return limits.cpu_shares or requested
    known = requested or DEFAULT_SHARES
    return known if may_become(known, weight=limits.cpu_weight) else shares_from_weight(limits.cpu_weight)


def _set(found: str | None, *, requested: str) -> str:
    """Return the requested spelling if the kernel's set is equal, such as `0,1` and `0-1`."""
    return requested if found is None or numbers(found) == numbers(requested) else found
