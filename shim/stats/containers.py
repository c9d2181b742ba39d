"""ContainerStats, ListContainerStats and StreamContainerStats."""

import time
from functools import partial

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import Cpu
from shim.runtime import Runtime
from shim.stats import messages
from shim.stats.readings import Reading, container_processor, container_reading
from shim.view.queries import filter_containers
from shim.view.records import ContainerRecord


def container_stats(rt: Runtime, *, container_id: str) -> pb.ContainerStats:
    """Return the resource usage of a container. Raise NotFound for an unknown id.

    A stopped container reports its last known CPU time and layer usage; all other values are 0. For a running
    container, values that cannot be read stay unset.
    """
    record = rt.view.container(container_id)
    if not record.state.may_run:
        return _stopped_stats(rt, record)
    return running_stats(rt, record) or _partial_stats(rt, record)


def list_container_stats(rt: Runtime, *, filter: pb.ContainerStatsFilter) -> list[pb.ContainerStats]:  # noqa: A002 - the CRI's word
    """Return the usage of all running containers that match every part of the filter.

    Ids may be unique prefixes. Raise InvalidArgument for a prefix that matches several containers, running or not. A
    container that exits during the call, or whose control group cannot be read, is omitted.

    Prefetched stats are returned once. Further requests before the next pass get them with current CPU time.
    """
    rt.stats_cache.container_stats.touch()
    fitting = filter_containers(
        rt.view.containers(),
        container_id=filter.id,
        sandbox_id=filter.pod_sandbox_id,
        selector=filter.label_selector,
    )
    run = (record for record in fitting if record.state.running)
    return [stats for record in run if (stats := _stats_for_list(rt, record)) is not None]


def running_stats(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats | None:
    """Return the usage of a running container; None if it has exited."""
    reading = container_reading(rt, record)
    return None if reading is None else stats_of(rt, record, reading=reading)


def stats_of(rt: Runtime, record: ContainerRecord, *, reading: Reading) -> pb.ContainerStats:
    """Build the stats of a running container from a reading."""
    processor, memory, at = reading.processor, reading.memory, reading.at
    return pb.ContainerStats(
        attributes=_attributes(rt, record),
        cpu=messages.cpu_usage(processor.cpu, at=processor.at, rate=processor.rate),
        memory=messages.memory_usage(memory, at=at),
        swap=messages.swap_usage(memory, at=at),
        io=messages.io_usage(reading.io_psi, at=at),
        writable_layer=writable_layer(rt, record),
    )


def writable_layer(rt: Runtime, record: ContainerRecord) -> pb.FilesystemUsage | None:
    """Return the last measurement of a container's layer; None before the first measurement."""
    layer = rt.stats_cache.layers.get(record.id)
    return None if layer is None else messages.filesystem_usage(layer)


def set_current_cpu(rt: Runtime, record: ContainerRecord, *, stats: pb.ContainerStats) -> bool:
    """Update the CPU time in the stats of a running container. Return False if it has exited."""
    processor = container_processor(rt, record)
    if processor is not None:
        messages.set_cpu_usage(stats.cpu, processor.cpu, at=processor.at, rate=processor.rate)
    return processor is not None


def _stats_for_list(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats | None:
    return rt.stats_cache.container_stats.answer(
        record.id, read=partial(running_stats, rt, record), refresh=partial(_with_current_cpu, rt, record)
    )


def _with_current_cpu(rt: Runtime, record: ContainerRecord, known: pb.ContainerStats) -> pb.ContainerStats | None:
    stats = pb.ContainerStats()
    stats.CopyFrom(known)  # answers in flight share it
    return stats if set_current_cpu(rt, record, stats=stats) else None


def _partial_stats(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats:
    """Return the stats of a running container whose files cannot all be read: unknown values are unset, not 0."""
    processor = container_processor(rt, record)
    cpu = None if processor is None else messages.cpu_usage(processor.cpu, at=processor.at, rate=processor.rate)
    return pb.ContainerStats(attributes=_attributes(rt, record), cpu=cpu, writable_layer=writable_layer(rt, record))


def _stopped_stats(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats:
    now = time.time_ns()
    last = rt.stats_cache.cpu.last(record.id)
    nothing = messages.value(0)
    return pb.ContainerStats(
        attributes=_attributes(rt, record),
        cpu=messages.cpu_usage(Cpu(last.usage if last else 0), at=now, rate=0),
        memory=pb.MemoryUsage(timestamp=now, working_set_bytes=nothing, usage_bytes=nothing, rss_bytes=nothing),
        writable_layer=writable_layer(rt, record),
    )


def _attributes(rt: Runtime, record: ContainerRecord) -> pb.ContainerAttributes:
    config = record.config
    made_from, attributes = rt.stats_cache.attributes.get(record.id, (None, None))
    if attributes is None or made_from is not config:
        attributes = pb.ContainerAttributes(
            id=record.id, metadata=config.metadata, labels=config.labels, annotations=config.annotations
        )
        rt.stats_cache.attributes[record.id] = (config, attributes)
    return attributes
