"""CPU, memory and the other limits: to Docker's fields, and back to the CRI's. Pure."""

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import HostSettings, JsonObject

SMALLEST_MEMORY = 6 << 20
"""Docker refuses a memory limit below 6 MiB."""


def create_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    """`HostConfig` fields for a new container."""
    fields = _cpu_fields(resources)
    memory = resources.memory_limit_in_bytes
    if memory > 0:
        fields["Memory"] = max(memory, SMALLEST_MEMORY)
        # No swap beyond the memory limit unless asked for, as with the other runtimes.
        fields["MemorySwap"] = max(resources.memory_swap_limit_in_bytes or memory, SMALLEST_MEMORY)
    return fields


def update_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    """Body of a container update. A field of 0 or "" is left out: the CRI and Docker both read it as unchanged."""
    fields = create_fields(resources)
    if resources.memory_limit_in_bytes < 0:
        fields |= {"Memory": -1, "MemorySwap": -1}
    return fields


def _cpu_fields(resources: pb.LinuxContainerResources) -> JsonObject:
    named = {
        "CpuPeriod": resources.cpu_period,
        "CpuQuota": resources.cpu_quota,
        "CpuShares": resources.cpu_shares,
        "CpusetCpus": resources.cpuset_cpus,
        "CpusetMems": resources.cpuset_mems,
    }
    return {name: value for name, value in named.items() if value}


def actual_resources(host: HostSettings) -> pb.LinuxContainerResources:
    """What Docker applies to a container now."""
    return pb.LinuxContainerResources(
        cpu_period=host.cpu_period,
        cpu_quota=host.cpu_quota,
        cpu_shares=host.cpu_shares,
        cpuset_cpus=host.cpuset_cpus,
        cpuset_mems=host.cpuset_mems,
        memory_limit_in_bytes=host.memory,
        memory_swap_limit_in_bytes=host.memory_swap,
        oom_score_adj=host.oom_score_adj,
    )
