"""ContainerStats, ListContainerStats and StreamContainerStats."""

import time

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import Cpu
from shim.runtime import Runtime
from shim.stats import messages
from shim.stats.readings import Reading, container_processor, container_reading
from shim.view.queries import filter_containers
from shim.view.records import ContainerRecord


def container_stats(rt: Runtime, *, container_id: str) -> pb.ContainerStats:
    """Return what a container uses. Raise NotFound for an unknown id.

    One that does not run uses nothing but its last known CPU time and its layer. Of one that may run, what cannot be
    read is not set.
    """
    record = rt.view.container(container_id)
    if not record.state.may_run:
        return _stopped_stats(rt, record)
    return running_stats(rt, record) or _partial_stats(rt, record)


def list_container_stats(rt: Runtime, *, filter: pb.ContainerStatsFilter) -> list[pb.ContainerStats]:  # noqa: A002 - the CRI's word
    """Return what all running containers use that match every part of the filter; ids in it may be unique prefixes.

    Raise InvalidArgument for an ambiguous one, also where others than running containers make it so. One that
    ends in the meantime is left out, and so is one whose control group cannot be read.

    A prefetched answer is returned once, and within half a second again. A request before the next one gets later CPU
    time, read in the meantime or now: a client that computes a rate from two answers needs two times.
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
    """Return what a running container uses, also for the stats of its pod; None when it has ended."""
    reading = container_reading(rt, record)
    return None if reading is None else stats_of(rt, record, reading=reading)


def stats_of(rt: Runtime, record: ContainerRecord, *, reading: Reading) -> pb.ContainerStats:
    """Build the stats of a running container from what was read."""
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
    """Return the last measurement of a container's layer; None before the first."""
    layer = rt.stats_cache.layers.get(record.id)
    return None if layer is None else messages.filesystem_usage(layer)


def with_current_cpu(rt: Runtime, record: ContainerRecord, known: pb.ContainerStats) -> pb.ContainerStats | None:
    """Return what was read of a running container before, with current CPU time; None when it has ended."""
    stats = pb.ContainerStats()
    stats.CopyFrom(known)  # it is shared with answers that are on their way
    return stats if set_current_cpu(rt, record, stats=stats) else None


def set_current_cpu(rt: Runtime, record: ContainerRecord, *, stats: pb.ContainerStats) -> bool:
    """Put current CPU time into what was read of a running container before. Return False when it has ended."""
    processor = container_processor(rt, record)
    if processor is not None:
        messages.set_cpu_usage(stats.cpu, processor.cpu, at=processor.at, rate=processor.rate)
    return processor is not None


def _stats_for_list(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats | None:
    cache = rt.stats_cache.container_stats
    stats = cache.get(record.id)
    if stats is None:
        stats = running_stats(rt, record)
    elif not cache.is_new(record.id, stats):
        stats = with_current_cpu(rt, record, stats)
    return None if stats is None else cache.note_returned(record.id, stats)


def _partial_stats(rt: Runtime, record: ContainerRecord) -> pb.ContainerStats:
    """Return what is known of a running container whose groups cannot all be read; the rest is unknown, not 0."""
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
