from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.engine.answers import NO_SWAP, HostSettings
from shim.spec.resources import (
    SMALLEST_MEMORY,
    START_MEMORY,
    UNLIMITED_MEMORY,
    beyond_docker,
    check_kept,
    check_memory,
    create_fields,
    former_fields,
    known_resources,
    merge_resources,
    update_fields,
)

MIB, GIB = 1 << 20, 1 << 30
Resources = pb.LinuxContainerResources


def huge_pages(**sizes: int) -> list[pb.HugepageLimit]:
    return [pb.HugepageLimit(page_size=size.strip("_"), limit=limit) for size, limit in sizes.items()]


def test_zero_fields_are_left_out() -> None:
    assert create_fields(Resources()) == {}
    assert update_fields(Resources(cpu_shares=512), wanted=Resources(cpu_shares=512)) == {"CpuShares": 512}


def test_cpu_and_memory_limits_are_converted() -> None:
    resources = Resources(
        cpu_period=100000, cpu_quota=-1, cpu_shares=2, cpuset_cpus="0-1", cpuset_mems="0", memory_limit_in_bytes=GIB
    )
    assert create_fields(resources) == {
        "CpuPeriod": 100000,
        "CpuQuota": -1,
        "CpuShares": 2,
        "CpusetCpus": "0-1",
        "CpusetMems": "0",
        "Memory": GIB,
        "MemorySwap": GIB + NO_SWAP,
    }


@pytest.mark.parametrize(
    ("asked", "docker"),
    [
        (Resources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=2 * GIB), (GIB, 2 * GIB)),
        (Resources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=-1), (GIB, -1)),
        (Resources(memory_limit_in_bytes=MIB), (START_MEMORY, START_MEMORY + NO_SWAP)),
        (Resources(memory_limit_in_bytes=MIB, memory_swap_limit_in_bytes=GIB), (START_MEMORY, GIB)),
        (Resources(memory_limit_in_bytes=SMALLEST_MEMORY), (SMALLEST_MEMORY, SMALLEST_MEMORY + NO_SWAP)),
        (Resources(memory_limit_in_bytes=GIB, unified={"memory.swap.max": "4096"}), (GIB, GIB + 4096)),
        (Resources(memory_limit_in_bytes=GIB, unified={"memory.swap.max": "max"}), (GIB, -1)),
        (Resources(memory_limit_in_bytes=GIB, unified={"memory.swap.max": "1G"}), (GIB, GIB + NO_SWAP)),
        (Resources(memory_limit_in_bytes=-1, memory_swap_limit_in_bytes=-1), (None, None)),
    ],
    ids=[
        *("both", "swap unlimited", "below 6 MiB", "below 6 MiB with swap", "6 MiB"),
        *("v2", "v2 max", "v2 with a unit", "none"),
    ],
)
def test_memory_and_swap_limits_are_converted(
    asked: pb.LinuxContainerResources, docker: tuple[int | None, int | None]
) -> None:
    fields = create_fields(asked)
    assert (fields.get("Memory"), fields.get("MemorySwap")) == docker


@pytest.mark.parametrize(("value", "limit"), [("20", 20), ("max", -1)])
def test_the_pids_limit_is_converted(value: str, limit: int) -> None:
    asked = Resources(unified={"pids.max": value})
    assert create_fields(asked) == update_fields(asked, wanted=asked) == {"PidsLimit": limit}


def test_a_memory_limit_can_be_lifted() -> None:
    lifting = Resources(memory_limit_in_bytes=-1)
    wanted = merge_resources(Resources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=GIB), lifting)
    assert update_fields(lifting, wanted=wanted) == {"Memory": UNLIMITED_MEMORY, "MemorySwap": UNLIMITED_MEMORY}
    known = known_resources(HostSettings(memory=UNLIMITED_MEMORY, memory_swap=UNLIMITED_MEMORY), Resources())
    assert (known.memory_limit_in_bytes, known.memory_swap_limit_in_bytes) == (-1, -1)


def test_no_swap_is_sent_to_docker_as_slightly_more_than_memory() -> None:
    asked = Resources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=GIB)
    fields = create_fields(asked)
    assert fields == {"Memory": GIB, "MemorySwap": GIB + 1}
    for swap in (GIB, fields["MemorySwap"]):  # of a container of this server, and of a cri-dockerd container
        known = known_resources(HostSettings(memory=GIB, memory_swap=swap), Resources())
        assert known.memory_swap_limit_in_bytes == GIB


def test_swap_is_sent_together_with_the_current_memory_limit() -> None:
    update = Resources(memory_swap_limit_in_bytes=2 * GIB)
    wanted = merge_resources(Resources(memory_limit_in_bytes=GIB, memory_swap_limit_in_bytes=GIB), update)
    assert update_fields(update, wanted=wanted) == {"Memory": GIB, "MemorySwap": 2 * GIB}


MERGED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": ({"cpu_shares": 5, "unified": {"a.b": "1"}}, {}, {"cpu_shares": 5, "unified": {"a.b": "1"}}),
    "memory alone": (
        {"memory_limit_in_bytes": 5, "memory_swap_limit_in_bytes": 9},
        {"memory_limit_in_bytes": 7},
        {"memory_limit_in_bytes": 7},
    ),
    "files": ({"unified": {"a.b": "1", "a.c": "1"}}, {"unified": {"a.b": "2"}}, {"unified": {"a.b": "2", "a.c": "1"}}),
    "a field for a file": (
        {"unified": {"cpu.max": "1 2", "cpu.weight": "5"}},
        {"cpu_quota": 5000},
        {"cpu_quota": 5000, "unified": {"cpu.weight": "5"}},
    ),
    "huge pages": (
        {"hugepage_limits": huge_pages(_2MB=1, _1GB=2)},
        {"hugepage_limits": huge_pages(_2Mi=3)},
        {"hugepage_limits": huge_pages(_2MB=3, _1GB=2)},
    ),
    "the OOM score, which cannot be changed": ({"oom_score_adj": 5}, {"oom_score_adj": 7}, {"oom_score_adj": 5}),
}


@pytest.mark.parametrize(("known", "update", "after"), MERGED.values(), ids=MERGED)
def test_updates_are_merged_into_the_current_limits(
    known: dict[str, Any], update: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merge_resources(Resources(**known), Resources(**update)) == Resources(**after)


def test_limits_that_docker_cannot_report_come_from_the_stored_limits() -> None:
    kept = Resources(memory_limit_in_bytes=MIB, unified={"a.b": "1"}, hugepage_limits=huge_pages(_2Mi=3), cpu_shares=9)
    host = HostSettings(cpu_shares=512, memory=START_MEMORY, memory_swap=START_MEMORY, oom_score_adj=900)
    known = known_resources(host, kept)
    assert known == Resources(
        cpu_shares=512,
        memory_limit_in_bytes=MIB,
        memory_swap_limit_in_bytes=MIB,
        oom_score_adj=900,
        unified={"a.b": "1"},
        hugepage_limits=huge_pages(_2MB=3),
    )
    assert beyond_docker(known) == Resources(
        memory_limit_in_bytes=MIB,
        memory_swap_limit_in_bytes=MIB,
        unified={"a.b": "1"},
        hugepage_limits=huge_pages(_2MB=3),
    )


def test_an_external_change_of_dockers_limit_wins() -> None:
    kept = Resources(memory_limit_in_bytes=MIB)
    assert known_resources(HostSettings(memory=GIB, memory_swap=GIB), kept).memory_limit_in_bytes == GIB


def test_only_changed_fields_are_restored() -> None:
    body = {"CpuQuota": 1, "CpuShares": 1, "CpusetCpus": "1", "CpusetMems": "1", "Memory": 1, "MemorySwap": 1}
    never = former_fields(HostSettings(), body, cpuset_cpus="0-3", cpuset_mems="")
    assert never == {
        "CpuQuota": -1,
        "CpuShares": 1024,
        "CpusetCpus": "0-3",
        "Memory": UNLIMITED_MEMORY,
        "MemorySwap": UNLIMITED_MEMORY,
    }
    host = HostSettings(cpu_period=50_000, memory=GIB, memory_swap=2 * GIB, pids_limit=7)
    body = {"CpuPeriod": 1, "Memory": 1, "MemorySwap": 1, "PidsLimit": 1}
    assert former_fields(host, body, cpuset_cpus="", cpuset_mems="") == {
        "CpuPeriod": 50_000,
        "Memory": GIB,
        "MemorySwap": 2 * GIB,
        "PidsLimit": 7,
    }


@pytest.mark.parametrize(
    ("memory", "swap", "fits"),
    [
        (0, 0, True),
        (5, 0, True),
        (5, 5, True),
        (5, -1, True),
        (-1, -1, True),
        (5, 4, False),
        (0, 5, False),
        (-1, 5, False),
    ],
)
def test_memory_and_swap_limits_must_be_compatible(memory: int, swap: int, fits: bool) -> None:
    resources = Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)
    if fits:
        check_memory(resources, field="linux")
        return
    with pytest.raises(InvalidArgument, match=r"linux\.memory_swap_limit_in_bytes"):
        check_memory(resources, field="linux")


ALL = Resources(
    cpu_period=50_000,
    cpu_quota=30_000,
    cpu_shares=512,
    cpuset_cpus="0",
    cpuset_mems="0",
    memory_limit_in_bytes=64 * MIB,
    memory_swap_limit_in_bytes=96 * MIB,
)
KEPT = {
    "cpu_period": 50_000,
    "cpu_quota": 30_000,
    "cpu_shares": 512,
    "cpuset_cpus": "0",
    "cpuset_mems": "0",
    "memory": 64 * MIB,
    "memory_swap": 96 * MIB,
}


def test_limits_that_docker_keeps_pass() -> None:
    check_kept(HostSettings(**KEPT), ALL, body=create_fields(ALL), field="linux")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "left", "field"),
    [
        ("cpu_period", 0, "cpu_period 50000"),
        ("cpu_quota", 0, "cpu_quota 30000"),
        ("cpu_shares", 0, "cpu_shares 512"),
        ("cpuset_cpus", "", "cpuset_cpus 0"),
        ("cpuset_mems", "", "cpuset_mems 0"),
        ("memory", 0, "memory_limit_in_bytes 67108864"),
        ("memory_swap", -1, "memory_swap_limit_in_bytes 100663296"),
    ],
)
def test_a_limit_that_docker_discards_is_refused_by_name(lost: str, left: object, field: str) -> None:
    kept = HostSettings(**{**KEPT, lost: left})  # type: ignore[arg-type]
    with pytest.raises(FailedPrecondition, match=rf"^linux\.{field}: Docker has discarded it"):
        check_kept(kept, ALL, body=create_fields(ALL), field="linux")


@pytest.mark.parametrize(
    "asked",
    [
        Resources(memory_limit_in_bytes=64 * MIB),
        Resources(memory_limit_in_bytes=64 * MIB, memory_swap_limit_in_bytes=-1),
        Resources(memory_limit_in_bytes=64 * MIB, unified={"memory.swap.max": "1"}),
    ],
    ids=["not said", "no limit", "by its file, which is written beside"],
)
def test_a_swap_limit_that_was_not_requested_may_be_discarded(asked: Resources) -> None:
    check_kept(HostSettings(memory=64 * MIB, memory_swap=-1), asked, body=create_fields(asked), field="linux")


def test_a_limit_below_dockers_minimum_is_stored() -> None:
    asked = Resources(memory_limit_in_bytes=4 * MIB, memory_swap_limit_in_bytes=5 * MIB)
    kept = HostSettings(memory=START_MEMORY, memory_swap=START_MEMORY + NO_SWAP)
    check_kept(kept, asked, body=create_fields(asked), field="linux")
