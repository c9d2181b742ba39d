from shim.api.v1 import api_pb2 as pb
from shim.container.resources import SMALLEST_MEMORY, actual_resources, create_fields, update_fields
from shim.engine.interface import HostSettings

GIB = 1 << 30


def test_what_is_zero_is_left_out() -> None:
    assert create_fields(pb.LinuxContainerResources()) == {}
    assert update_fields(pb.LinuxContainerResources(cpu_shares=512)) == {"CpuShares": 512}


def test_cpu_and_memory() -> None:
    resources = pb.LinuxContainerResources(
        cpu_period=100000, cpu_quota=-1, cpu_shares=2, cpuset_cpus="0-1", cpuset_mems="0", memory_limit_in_bytes=GIB
    )
    assert create_fields(resources) == {
        "CpuPeriod": 100000,
        "CpuQuota": -1,
        "CpuShares": 2,
        "CpusetCpus": "0-1",
        "CpusetMems": "0",
        "Memory": GIB,
        "MemorySwap": GIB,
    }


def test_swap_is_what_was_asked_for_on_top_of_memory() -> None:
    asked = pb.LinuxContainerResources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=2 * GIB)
    assert create_fields(asked)["MemorySwap"] == 2 * GIB


def test_docker_gets_at_least_its_minimum() -> None:
    fields = create_fields(pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))
    assert fields == {"Memory": SMALLEST_MEMORY, "MemorySwap": SMALLEST_MEMORY}


def test_a_memory_limit_can_be_lifted() -> None:
    assert update_fields(pb.LinuxContainerResources(memory_limit_in_bytes=-1)) == {"Memory": -1, "MemorySwap": -1}


def test_the_actual_state_comes_from_docker() -> None:
    host = HostSettings(cpu_shares=512, memory=GIB, memory_swap=GIB, oom_score_adj=900, cpuset_cpus="1")
    assert actual_resources(host) == pb.LinuxContainerResources(
        cpu_shares=512,
        memory_limit_in_bytes=GIB,
        memory_swap_limit_in_bytes=GIB,
        oom_score_adj=900,
        cpuset_cpus="1",
    )
