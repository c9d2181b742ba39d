"""Reads the control groups of containers and pods. For a group that is gone, functions return None."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shim import pod
from shim.cgroup.figures import Cpu, Memory, Psi
from shim.cgroup.locator import Place
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from shim.stats_cache import Point
from shim.view.records import ContainerRecord, Record, SandboxRecord

_QUICK_READ = 1_000_000
"""Maximum nanoseconds of a read with an exact timestamp."""
_MAX_READS = 5


@dataclass(frozen=True, slots=True)
class Processor:
    """CPU time, its timestamp (ns since the epoch), and its recent rate in ns per second."""

    at: int
    cpu: Cpu
    rate: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of a running container for stats and metrics. Each pass reads them once."""

    place: Place
    processor: Processor
    memory: Memory
    io_psi: Psi | None
    at: int
    """When memory was read, ns since the epoch."""


def cadvisor_id(rt: Runtime, record: Record) -> str:
    """Return cAdvisor's name of a container or pause container: the path of its control group, else its id."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    return place.path if place is not None and place.path else record.id


def container_processor(rt: Runtime, record: ContainerRecord) -> Processor | None:
    """Read the CPU time of a container; None if it has exited."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    return None if place is None else _processor(rt, record, _read_with_time(place.group.cpu))


def container_reading(rt: Runtime, record: ContainerRecord) -> Reading | None:
    """Read the figures of a running container; None if it has exited."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    if place is None:
        return None
    processor, memory = _processor(rt, record, _read_with_time(place.group.cpu)), place.group.memory()
    if processor is None or memory is None:
        return None
    return Reading(place, processor, memory, place.group.io_psi(), time.time_ns())


def pod_processor(rt: Runtime, record: SandboxRecord) -> Processor | None:
    """Read the CPU time of all containers of a pod, including the pause container."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    if place is None:
        return None
    if has_group(record):
        return _pod_processor(rt, record, _read_with_time(place.pod.cpu))
    members = _members(rt, record, place)
    return _processor(rt, record, _read_with_time(lambda: _cpu_sum(members)))


def pod_memory(rt: Runtime, record: SandboxRecord) -> Memory | None:
    """Read the memory of a pod."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    if place is None:
        return None
    if has_group(record):
        return place.pod.memory()
    parts = [memory for member in _members(rt, record, place) if (memory := member.group.memory()) is not None]
    return _memory_sum(parts) if parts else None


def pod_tasks(rt: Runtime, record: SandboxRecord) -> int | None:
    """Count the tasks of a pod."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    if place is None:
        return None
    groups = [place.pod] if has_group(record) else [member.group for member in _members(rt, record, place)]
    counts = [pids.current for group in groups if (pids := group.pids()) is not None]
    return sum(counts) if counts else None


def has_group(record: SandboxRecord) -> bool:
    """Return whether the pod has its own control group, as every pod of a kubelet does.

    Without `cgroup_parent` Docker puts the containers of all pods into the same parent group.
    """
    return bool(record.config.linux.cgroup_parent)


def running_sandboxes(rt: Runtime) -> list[SandboxRecord]:
    """Return the sandboxes with stats: the ready sandboxes."""
    return [record for record in rt.view.sandboxes() if pod.is_ready(rt.checkpoints, record)]


def running_containers(rt: Runtime, *, sandbox_id: SandboxId | None = None) -> list[ContainerRecord]:
    """Return the running containers, which have stats, of one sandbox or of all."""
    records = rt.view.containers() if sandbox_id is None else rt.view.containers_of(sandbox_id)
    return [record for record in records if record.state.running]


def runs_exactly(rt: Runtime, sandbox_id: SandboxId, *, containers: Iterable[str]) -> bool:
    """Return whether exactly these containers run in a pod, so that an earlier reading of the pod is still valid."""
    return {record.id for record in running_containers(rt, sandbox_id=sandbox_id)} == set(containers)


def _read_with_time(read: Callable[[], Cpu | None]) -> tuple[int, Cpu] | None:
    """Read CPU time; return it with its timestamp, ns since the epoch.

    On a busy machine this thread may be preempted between file and clock, long enough to distort a rate. So a slow read
    is repeated, and the quickest read is returned.
    """
    seen, least = None, 0
    for _ in range(_MAX_READS):
        began = time.time_ns()
        cpu = read()
        took = time.time_ns() - began
        if cpu is None:
            return None
        if seen is None or took < least:
            seen, least = (began + took // 2, cpu), took
        if took <= _QUICK_READ:
            break
    return seen


def _processor(rt: Runtime, record: Record, seen: tuple[int, Cpu] | None) -> Processor | None:
    if seen is None:
        return None
    at, cpu = seen
    return Processor(at, cpu, rt.stats_cache.cpu.rate(record.id, Point(at, cpu.usage), born_at=record.state.started_at))


def _pod_processor(rt: Runtime, record: SandboxRecord, seen: tuple[int, Cpu] | None) -> Processor | None:
    """Return the CPU time of a pod's own group, in which earlier sandboxes of the pod may have used CPU time."""
    if seen is None:
        return None
    at, cpu = seen
    now = Point(at, cpu.usage)
    rate = rt.stats_cache.cpu.rate_since_seen(record.id, now)
    if rate is None:
        containers = (container_processor(rt, container) for container in running_containers(rt, sandbox_id=record.id))
        rate = sum(processor.rate for processor in containers if processor is not None)
    return Processor(at, cpu, rate)


def _members(rt: Runtime, record: SandboxRecord, pause: Place) -> list[Place]:
    containers = (
        rt.cgroups.place(container.id, pid=container.state.pid)
        for container in running_containers(rt, sandbox_id=record.id)
    )
    return [pause, *(place for place in containers if place is not None)]


def _cpu_sum(places: list[Place]) -> Cpu | None:
    parts = [cpu for place in places if (cpu := place.group.cpu()) is not None]
    return Cpu(sum(part.usage for part in parts)) if parts else None


def _memory_sum(parts: list[Memory]) -> Memory:
    """Add up memory figures, except limits."""
    return Memory(
        usage=sum(part.usage for part in parts),
        working_set=sum(part.working_set for part in parts),
        limit=None,
        rss=_sum(part.rss for part in parts),
        cache=_sum(part.cache for part in parts),
        mapped_file=_sum(part.mapped_file for part in parts),
        active_file=_sum(part.active_file for part in parts),
        inactive_file=_sum(part.inactive_file for part in parts),
        page_faults=_sum(part.page_faults for part in parts),
        major_page_faults=_sum(part.major_page_faults for part in parts),
        swap_usage=_sum(part.swap_usage for part in parts),
        swap_limit=None,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
