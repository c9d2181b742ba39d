"""Conversion of container limits between the CRI and NRI. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.cgroup.keys import check_unified, huge_page_limits
from shim.domain.errors import InvalidArgument
from shim.engine.interface import JsonObject
from shim.nri.fields import is_set

ONLY_AT_CREATE = (
    "memory.kernel_tcp",
    "memory.swappiness",
    "memory.disable_oom_killer",
    "memory.use_hierarchy",
    "cpu.realtime_runtime",
    "cpu.realtime_period",
    "blockio_class",
    "rdt_class",
    "devices",
)
"""Fields that the OCI runtime can set only when it creates a container."""
REMOVED_FROM_LINUX = ("memory.kernel",)
"""Fields that Linux has removed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Limits, divided by who sets them."""

    linux: pb.LinuxContainerResources
    """Limits that the CRI has a field for."""
    docker: JsonObject
    """Limits that only Docker has a field for, by Docker's names."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no limit to set."""
        return not self.docker and not self.linux.ListFields()


def of_cri(resources: pb.LinuxContainerResources) -> nri.LinuxResources:
    """Convert CRI limits to NRI. Fields that are 0 or empty are unset in the CRI, so the result has no such field."""
    memory, cpu = nri.LinuxMemory(), nri.LinuxCPU(cpus=resources.cpuset_cpus, mems=resources.cpuset_mems)
    for value, field in (
        (resources.memory_limit_in_bytes, memory.limit),
        (resources.memory_swap_limit_in_bytes, memory.swap),
        (resources.cpu_quota, cpu.quota),
        (max(0, resources.cpu_shares), cpu.shares),
        (max(0, resources.cpu_period), cpu.period),
    ):
        if value:
            field.value = value
    return nri.LinuxResources(
        memory=memory,
        cpu=cpu,
        unified=resources.unified,
        hugepage_limits=[
            nri.HugepageLimit(page_size=each.page_size, limit=each.limit) for each in resources.hugepage_limits
        ],
    )


def to_cri(resources: nri.LinuxResources, *, field: str) -> Wanted:
    """Convert NRI limits to the CRI and Docker. Raise InvalidArgument, which names the field.

    Refused are fields that Linux has removed, and files and page sizes that the CRI's requests may not have either:
    plugins take values from annotations of pods, and a name such as `../memory.max` would leave the container's group.
    """
    for path in REMOVED_FROM_LINUX:
        if is_set(resources, path):
            raise InvalidArgument(f"{field}.{path}: kernels have no such limit any more")
    memory, cpu = resources.memory, resources.cpu
    linux = pb.LinuxContainerResources(
        memory_limit_in_bytes=memory.limit.value,
        memory_swap_limit_in_bytes=memory.swap.value,
        cpu_quota=cpu.quota.value,
        cpu_shares=_signed(cpu.shares.value, field=f"{field}.cpu.shares"),
        cpu_period=_signed(cpu.period.value, field=f"{field}.cpu.period"),
        cpuset_cpus=cpu.cpus,
        cpuset_mems=cpu.mems,
        unified=resources.unified,
        hugepage_limits=[
            pb.HugepageLimit(page_size=each.page_size, limit=each.limit) for each in resources.hugepage_limits
        ],
    )
    check_unified(linux.unified, field=f"{field}.unified")
    huge_page_limits(linux.hugepage_limits, field=f"{field}.hugepage_limits")
    return Wanted(linux, dict(_docker(resources)))


def check_changeable(resources: nri.LinuxResources, *, field: str) -> None:
    """Check that an existing container can change these limits. Raise InvalidArgument, which names the field."""
    for path in ONLY_AT_CREATE:
        if is_set(resources, path):
            raise InvalidArgument(f"{field}.{path} can be set when a container is created, and not changed later")


def _docker(resources: nri.LinuxResources) -> Iterator[tuple[str, int]]:
    if resources.HasField("pids"):
        yield "PidsLimit", resources.pids.limit if resources.pids.limit > 0 else -1
    if resources.memory.reservation.value:
        yield "MemoryReservation", resources.memory.reservation.value


def _signed(value: int, *, field: str) -> int:
    if value >= 1 << 63:
        raise InvalidArgument(f"{field} {value} is too large")
    return value
