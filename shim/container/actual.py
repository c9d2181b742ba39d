"""What a container is limited to now: by its control group while it runs, else by Docker. No call to Docker."""

import os

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import NO_LIMIT, Limits
from shim.cgroup.files import read
from shim.cgroup.parse import allowed, line, numbers
from shim.cgroup.places import Group
from shim.cgroup.shares import DEFAULT_SHARES, may_become, shares_from_weight
from shim.container.cgroup import wanted_resources
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

_PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes; the kernel counts in whole pages."""
_MOST_HUGE_PAGES = (1 << 64) - 1
"""How the CRI, which counts them without a sign, tells of no limit."""


def actual_resources(rt: Runtime, record: ContainerRecord) -> pb.LinuxContainerResources:
    """Give the limits of a container as they are in force, whoever has changed them.

    What the kernel keeps coarser than it was told (whole pages, CPU weights) is given as it was told. No limit is 0
    where Docker has none either, and else -1.
    """
    told = wanted_resources(rt, record)
    if told.memory_limit_in_bytes <= 0:
        told.memory_limit_in_bytes = told.memory_swap_limit_in_bytes = 0
    group = _own_group(rt, record)
    if group is not None:
        _take_limits(told, group.limits())
        _take_files(told, group)
        told.oom_score_adj = _oom_score(record.life.pid, told=told.oom_score_adj)
    return told


def _own_group(rt: Runtime, record: ContainerRecord) -> Group | None:
    """The group that was made for the container, while it runs; None where a sandboxed runtime made none for it."""
    place = rt.cgroups.place(record.id, pid=record.life.pid)
    return place.group if place else None


def _take_limits(told: pb.LinuxContainerResources, limits: Limits) -> None:
    if limits.cpu_period:
        told.cpu_period = limits.cpu_period
    told.cpu_quota = _limit(limits.cpu_quota, told=told.cpu_quota)
    told.cpu_shares = _shares(limits, told=told.cpu_shares)
    told.cpuset_cpus = _set(limits.cpuset_cpus, told=told.cpuset_cpus)
    told.cpuset_mems = _set(limits.cpuset_mems, told=told.cpuset_mems)
    told.memory_limit_in_bytes = _pages(limits.memory, told=told.memory_limit_in_bytes)
    told.memory_swap_limit_in_bytes = _pages(limits.memory_swap, told=told.memory_swap_limit_in_bytes)


def _take_files(told: pb.LinuxContainerResources, group: Group) -> None:
    """Read what was asked for by file; what was not is not told."""
    # A copy: setting a key may move the others of a map that is walked.
    for key, asked in dict(told.unified).items():
        told.unified[key] = line(read(group.unified_file(key))) or asked
    for limit in told.hugepage_limits:
        files = group.huge_page_files(limit.page_size)
        found = allowed(read(files[0])) if files else None
        if found is not None:
            limit.limit = _MOST_HUGE_PAGES if found == NO_LIMIT else found


def _oom_score(pid: int, *, told: int) -> int:
    text = line(read(f"/proc/{pid}/oom_score_adj"))
    return int(text) if text else told


def _limit(found: int | None, *, told: int) -> int:
    unlimited_to_both = found == NO_LIMIT and told <= 0
    return told if found is None or unlimited_to_both else found


def _pages(found: int | None, *, told: int) -> int:
    if found is not None and found <= told < found + _PAGE:
        return told
    return _limit(found, told=told)


def _shares(limits: Limits, *, told: int) -> int:
    if limits.cpu_weight is None:
        return limits.cpu_shares or told
    known = told or DEFAULT_SHARES
    return known if may_become(known, weight=limits.cpu_weight) else shares_from_weight(limits.cpu_weight)


def _set(found: str | None, *, told: str) -> str:
    """A set as Docker has it where the kernel has the same: what is `0,1` to the one is `0-1` to the other."""
    return told if found is None or numbers(found) == numbers(told) else found
