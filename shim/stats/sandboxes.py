"""PodSandboxStats, ListPodSandboxStats and StreamPodSandboxStats."""

import time
from functools import partial

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import Cpu, Memory
from shim.domain.ids import ContainerId
from shim.runtime import Runtime
from shim.stats import messages
from shim.stats.containers import running_stats, set_current_cpu
from shim.stats.network import interfaces_of
from shim.stats.readings import (
    Processor,
    has_group,
    pod_memory,
    pod_processor,
    pod_tasks,
    running_containers,
    runs_exactly,
)
from shim.view.queries import filter_sandboxes
from shim.view.records import ContainerRecord, SandboxRecord


def pod_sandbox_stats(rt: Runtime, *, sandbox_id: str) -> pb.PodSandboxStats:
    """Return the resource usage of a pod. Raise NotFound for an unknown id.

    A stopped pod reports its last known CPU time. For a running pod, values that cannot be read stay unset.
    """
    record = rt.view.sandbox(sandbox_id)
    if not record.state.may_run:
        return _stopped_stats(rt, record)
    return _known_stats(rt, record, pod_processor(rt, record), pod_memory(rt, record), prefetched=False)


def list_pod_sandbox_stats(rt: Runtime, *, filter: pb.PodSandboxStatsFilter) -> list[pb.PodSandboxStats]:  # noqa: A002 - the CRI's word
    """Return the usage of all ready pods that match every part of the filter.

    The id may be a unique prefix. Raise InvalidArgument for a prefix that matches several pods, ready or not. A pod
    that stops during the call is omitted. Prefetched stats are returned once, as by `list_container_stats`.
    """
    rt.stats_cache.sandbox_stats.touch()
    fitting = filter_sandboxes(rt.view.sandboxes(), sandbox_id=filter.id, selector=filter.label_selector)
    ready = (record for record in fitting if pod.is_ready(rt.checkpoints, record))
    found = (_stats_for_list(rt, record) for record in ready)
    return [stats for stats in found if stats is not None]


def running_pod_stats(rt: Runtime, record: SandboxRecord, *, prefetched: bool) -> pb.PodSandboxStats | None:
    """Return the usage of a running pod; None if it has stopped.

    With `prefetched`, the stats of its containers may come from the last pass.
    """
    processor, memory = pod_processor(rt, record), pod_memory(rt, record)
    return (
        None
        if processor is None or memory is None
        else _known_stats(rt, record, processor, memory, prefetched=prefetched)
    )


def _known_stats(
    rt: Runtime, record: SandboxRecord, processor: Processor | None, memory: Memory | None, *, prefetched: bool
) -> pb.PodSandboxStats:
    at = time.time_ns()
    running = running_containers(rt, sandbox_id=record.id)
    containers = (_container(rt, container, prefetched=prefetched) for container in running)
    return pb.PodSandboxStats(
        attributes=_attributes(record),
        linux=pb.LinuxPodSandboxStats(
            cpu=messages.cpu_usage(processor.cpu, at=processor.at, rate=processor.rate) if processor else None,
            memory=messages.memory_usage(memory, at=at) if memory else None,
            network=_network(record),
            process=pb.ProcessUsage(timestamp=at, process_count=messages.value(pod_tasks(rt, record))),
            containers=[stats for stats in containers if stats is not None],
            io=_io(rt, record, at=at),
        ),
    )


def _stats_for_list(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxStats | None:
    return rt.stats_cache.sandbox_stats.answer(
        record.id,
        read=partial(running_pod_stats, rt, record, prefetched=True),
        refresh=partial(_with_current_cpu, rt, record),
        holds=lambda stats: runs_exactly(
            rt, record.id, containers=[each.attributes.id for each in stats.linux.containers]
        ),
    )


def _with_current_cpu(rt: Runtime, record: SandboxRecord, known: pb.PodSandboxStats) -> pb.PodSandboxStats | None:
    """Return a copy of `known` with current CPU time; None if the pod has stopped."""
    processor = pod_processor(rt, record)
    if processor is None:
        return None
    stats = pb.PodSandboxStats()
    stats.CopyFrom(known)  # answers in flight share it
    messages.set_cpu_usage(stats.linux.cpu, processor.cpu, at=processor.at, rate=processor.rate)
    running = {container.id: container for container in running_containers(rt, sandbox_id=record.id)}
    for number, container in reversed(tuple(enumerate(stats.linux.containers))):
        found = running.get(ContainerId(container.attributes.id))
        if found is None or not set_current_cpu(rt, found, stats=container):
            del stats.linux.containers[number]
    return stats


def _container(rt: Runtime, record: ContainerRecord, *, prefetched: bool) -> pb.ContainerStats | None:
    return (rt.stats_cache.container_stats.get(record.id) if prefetched else None) or running_stats(rt, record)


def _network(record: SandboxRecord) -> pb.NetworkUsage | None:
    # With the host network these would be the node's counters.
    if pod.host_network(record.config):
        return None
    interfaces = interfaces_of(record.state.pid)
    return None if interfaces is None else messages.network_usage(interfaces, at=time.time_ns())


def _io(rt: Runtime, record: SandboxRecord, *, at: int) -> pb.IoUsage | None:
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    return messages.io_usage(place.pod.io_psi(), at=at) if place is not None and has_group(record) else None


def _stopped_stats(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxStats:
    now = time.time_ns()
    last = rt.stats_cache.cpu.last(record.id)
    nothing = messages.value(0)
    return pb.PodSandboxStats(
        attributes=_attributes(record),
        linux=pb.LinuxPodSandboxStats(
            cpu=messages.cpu_usage(Cpu(last.usage if last else 0), at=now, rate=0),
            memory=pb.MemoryUsage(timestamp=now, working_set_bytes=nothing, usage_bytes=nothing, rss_bytes=nothing),
            process=pb.ProcessUsage(timestamp=now, process_count=nothing),
        ),
    )


def _attributes(record: SandboxRecord) -> pb.PodSandboxAttributes:
    return pb.PodSandboxAttributes(
        id=record.id,
        metadata=record.config.metadata,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )
