"""CPU, memory and other limits: their conversion to Docker's fields, and the effect of an update. Pure."""

from collections.abc import Iterable

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import NO_LIMIT
from shim.cgroup.keys import page_size_name
from shim.cgroup.shares import DEFAULT_PERIOD, DEFAULT_SHARES
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.engine.answers import NO_SWAP, HostSettings
from shim.engine.interface import JsonObject

SMALLEST_MEMORY = 6 << 20
"""Docker refuses a memory limit below 6 MiB."""

START_MEMORY = 32 << 20
"""The limit for Docker in place of a smaller limit, which the server writes once the container runs.

The first process of a container is runc, whose memory counts for the limit. runc takes up to 9 MiB, and twice as much
if it copies itself (opencontainers/runc#4427): with 6 MiB the kernel sometimes kills it, and the start fails.
"""

UNLIMITED_MEMORY = (1 << 63) - (1 << 12)
"""The limit for Docker in place of "no limit", since Docker has no value that lifts a limit. The kernel's maximum."""

PIDS, SWAP = "pids.max", "memory.swap.max"
"""Files of cgroup v2 whose limits Docker has a field for."""

_SCALARS = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
}
_MEMORY = {"memory_limit_in_bytes": "Memory", "memory_swap_limit_in_bytes": "MemorySwap"}
_SAME_FILE = {
    "cpu_period": ("cpu.max",),
    "cpu_quota": ("cpu.max",),
    "cpu_shares": ("cpu.weight", "cpu.weight.nice", "cpu.idle"),
    "cpuset_cpus": ("cpuset.cpus",),
    "cpuset_mems": ("cpuset.mems",),
    "memory_limit_in_bytes": ("memory.max",),
    "memory_swap_limit_in_bytes": (SWAP,),
}
"""Files of cgroup v2 that hold the same limit as a field."""


def create_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    """Build the `HostConfig` fields of a new container."""
    return {**_cpu_fields(resources), **_memory_fields(resources), **_pids_fields(resources)}


def update_fields(update: pb.LinuxContainerResources, *, wanted: pb.LinuxContainerResources) -> JsonObject:
    """Build the body of a container update; `wanted` holds all limits of the container after the update.

    A field of 0 or "" is left out: both the CRI and Docker read it as unchanged. Memory and swap are sent together,
    since Docker checks them against each other.
    """
    fields = _cpu_fields(update) | _pids_fields(update)
    if update.memory_limit_in_bytes or update.memory_swap_limit_in_bytes or SWAP in update.unified:
        fields |= _memory_fields(wanted)
        if wanted.memory_limit_in_bytes == NO_LIMIT:
            fields |= {"Memory": UNLIMITED_MEMORY, "MemorySwap": UNLIMITED_MEMORY}
    return fields


def former_fields(host: HostSettings, body: JsonObject, *, cpuset_cpus: str, cpuset_mems: str) -> JsonObject:
    """Build the body that undoes the update `body` of a container that had the limits `host` before.

    Docker cannot remove a limit: where it had none, it gets the kernel's initial value. `cpuset_cpus` and `cpuset_mems`
    are the former sets of the container's cgroup.
    """
    memory = host.memory or UNLIMITED_MEMORY
    fields = {
        "CpuPeriod": host.cpu_period or DEFAULT_PERIOD,
        "CpuQuota": host.cpu_quota or NO_LIMIT,
        "CpuShares": host.cpu_shares or DEFAULT_SHARES,
        "CpusetCpus": host.cpuset_cpus or cpuset_cpus,
        "CpusetMems": host.cpuset_mems or cpuset_mems,
        "Memory": memory,
        "MemorySwap": host.memory_swap or memory,
        "PidsLimit": host.pids_limit or NO_LIMIT,
        "MemoryReservation": host.memory_reservation or UNLIMITED_MEMORY,
    }
    return {name: fields[name] for name in body if fields[name]}


def known_resources(host: HostSettings, kept: pb.LinuxContainerResources) -> pb.LinuxContainerResources:
    """Return all limits of a container: Docker's, and the limits in `kept` that Docker has no field for."""
    known = pb.LinuxContainerResources(
        cpu_period=host.cpu_period,
        cpu_quota=host.cpu_quota,
        cpu_shares=host.cpu_shares,
        cpuset_cpus=host.cpuset_cpus,
        cpuset_mems=host.cpuset_mems,
        memory_limit_in_bytes=NO_LIMIT if host.memory >= UNLIMITED_MEMORY else host.memory,
        memory_swap_limit_in_bytes=NO_LIMIT if host.memory_swap >= UNLIMITED_MEMORY else host.memory_and_swap,
        oom_score_adj=host.oom_score_adj,
        unified=kept.unified,
        hugepage_limits=_by_size(kept.hugepage_limits),
    )
    # Unless Docker's limit has been changed since.
    if is_small(kept.memory_limit_in_bytes) and host.memory == START_MEMORY:
        known.memory_limit_in_bytes = kept.memory_limit_in_bytes
        known.memory_swap_limit_in_bytes = kept.memory_swap_limit_in_bytes or kept.memory_limit_in_bytes
    return known


def beyond_docker(resources: pb.LinuxContainerResources) -> pb.LinuxContainerResources:
    """Return the limits of `resources` that Docker has no field for."""
    beyond = pb.LinuxContainerResources(unified=resources.unified, hugepage_limits=_by_size(resources.hugepage_limits))
    if is_small(resources.memory_limit_in_bytes):
        beyond.memory_limit_in_bytes = resources.memory_limit_in_bytes
        beyond.memory_swap_limit_in_bytes = resources.memory_swap_limit_in_bytes or resources.memory_limit_in_bytes
    return beyond


def merge_resources(
    known: pb.LinuxContainerResources, update: pb.LinuxContainerResources
) -> pb.LinuxContainerResources:
    """Return the limits of a container after an update.

    A memory limit without a swap limit allows no swap, like in other runtimes. A field replaces the cgroup v2 file that
    was set for the same limit.
    """
    after = pb.LinuxContainerResources()
    after.CopyFrom(known)
    if update.memory_limit_in_bytes:
        after.memory_swap_limit_in_bytes = min(update.memory_limit_in_bytes, 0)
    for field, files in _SAME_FILE.items():
        if value := getattr(update, field):
            setattr(after, field, value)
            for name in files:
                after.unified.pop(name, None)
    after.unified.update(update.unified)
    del after.hugepage_limits[:]
    after.hugepage_limits.extend(_by_size([*known.hugepage_limits, *update.hugepage_limits]))
    return after


def check_memory(wanted: pb.LinuxContainerResources, *, field: str) -> None:
    """Raise InvalidArgument unless the limit of memory and swap is compatible with the limit of memory."""
    memory, both = wanted.memory_limit_in_bytes, wanted.memory_swap_limit_in_bytes
    if both > 0 and memory <= 0:
        raise InvalidArgument(f"{field}.memory_swap_limit_in_bytes {both} needs a memory_limit_in_bytes")
    if 0 < both < memory:
        raise InvalidArgument(
            f"{field}.memory_swap_limit_in_bytes {both} is less than memory_limit_in_bytes {memory}: it counts both"
        )


def check_kept(kept: HostSettings, asked: pb.LinuxContainerResources, *, body: JsonObject, field: str) -> None:
    """Raise FailedPrecondition if Docker has discarded a limit that was `asked` for and sent in `body`.

    `body` is a HostConfig or an update. Docker discards limits that the kernel or its cgroups do not support. The text
    of its warning varies by version, so this compares the values. A swap limit that only follows from the memory limit
    may be lost on kernels that do not count swap, like in other runtimes.
    """
    now = {
        "CpuPeriod": kept.cpu_period,
        "CpuQuota": kept.cpu_quota,
        "CpuShares": kept.cpu_shares,
        "CpusetCpus": kept.cpuset_cpus,
        "CpusetMems": kept.cpuset_mems,
        "Memory": kept.memory,
        "MemorySwap": kept.memory_swap,
    }
    for name, docker in {**_SCALARS, **_MEMORY}.items():
        value = getattr(asked, name)
        if value not in {0, NO_LIMIT, ""} and now[docker] != body[docker]:
            raise FailedPrecondition(
                f"{field}.{name} {value}: Docker has discarded it, since the kernel or its cgroups do not support it"
            )


def is_small(memory: int) -> bool:
    """Return whether Docker refuses this memory limit as too low."""
    return 0 < memory < SMALLEST_MEMORY


def _by_size(limits: Iterable[pb.HugepageLimit]) -> list[pb.HugepageLimit]:
    """Return the last limit of each page size, with the kernel's name of the size. Drop invalid sizes."""
    sizes = {page_size_name(each.page_size): each.limit for each in limits}
    return [pb.HugepageLimit(page_size=size, limit=limit) for size, limit in sizes.items() if size]


def _cpu_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    return {docker: value for field, docker in _SCALARS.items() if (value := getattr(resources, field))}


def _memory_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    memory, both = resources.memory_limit_in_bytes, resources.memory_swap_limit_in_bytes
    if memory <= 0:
        return {}
    swap = resources.unified.get(SWAP, "")
    if not both and swap:
        both = memory + int(swap) if swap.isdecimal() else NO_LIMIT if swap == "max" else 0
    docker = START_MEMORY if is_small(memory) else memory
    return {"Memory": docker, "MemorySwap": NO_LIMIT if both == NO_LIMIT else max(both, docker + NO_SWAP)}


def _pids_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    if PIDS not in resources.unified:
        return {}
    text = resources.unified[PIDS]
    return {"PidsLimit": NO_LIMIT if text == "max" else int(text)}
