"""ListMetricDescriptors, ListPodSandboxMetrics and StreamPodSandboxMetrics."""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.domain.ids import ContainerId, ImageId
from shim.domain.names import POD
from shim.runtime import Runtime
from shim.stats.descriptors import CONTAINER, CPU, EVERY, NETWORK, descriptor
from shim.stats.metric import ContainerMetric, CpuFigures, F_contra, Figures
from shim.stats.network import interfaces_of
from shim.stats.processes import processes, soft_limits
from shim.stats.readings import (
    Reading,
    cadvisor_id,
    container_processor,
    container_reading,
    running_containers,
    running_sandboxes,
    runs_exactly,
)
from shim.view.image_index import name_for_people
from shim.view.records import ContainerRecord, SandboxRecord

_DEVICES = Path("/sys/dev/block")


def list_metric_descriptors() -> list[pb.MetricDescriptor]:
    """Describe all metrics, even those that this node's kernel does not report."""
    return [descriptor(metric) for metric in EVERY]


def list_pod_sandbox_metrics(rt: Runtime) -> list[pb.PodSandboxMetrics]:
    """Return the metrics of all ready pods and their running containers."""
    rt.stats_cache.sandbox_metrics.touch()
    found = (_metrics_for_list(rt, record) for record in running_sandboxes(rt))
    return [metrics for metrics in found if metrics is not None]


def pod_metrics(
    rt: Runtime, record: SandboxRecord, *, read: Mapping[ContainerId, Reading | None] | None = None
) -> pb.PodSandboxMetrics:
    """Read all metrics of a pod. Containers that have exited meanwhile are omitted.

    `read` contains readings of its containers from the same pass.
    """
    known = read or {}
    # Cached for this pass only, because device numbers are reused, and a new device may not have its name yet.
    device_name = functools.cache(_device_name)
    containers = (
        _container_metrics(
            rt,
            record,
            container,
            known.get(container.id) or container_reading(rt, container),
            device_name=device_name,
        )
        for container in running_containers(rt, sandbox_id=record.id)
    )
    return pb.PodSandboxMetrics(
        pod_sandbox_id=record.id,
        metrics=_network_metrics(rt, record),
        container_metrics=[metrics for metrics in containers if metrics is not None],
    )


def _with_current_cpu(rt: Runtime, record: SandboxRecord, known: pb.PodSandboxMetrics) -> pb.PodSandboxMetrics:
    """Return a copy of `known` with current CPU time and network counters. All other metrics need many more files."""
    metrics = pb.PodSandboxMetrics()
    metrics.CopyFrom(known)  # answers in flight share it
    del metrics.metrics[:]
    metrics.metrics.extend(_network_metrics(rt, record))
    running = {container.id: container for container in running_containers(rt, sandbox_id=record.id)}
    for each in metrics.container_metrics:
        container = running.get(ContainerId(each.container_id))
        if container is not None:
            _set_current_cpu(rt, container, metrics=each)
    return metrics


def _metrics_for_list(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxMetrics | None:
    return rt.stats_cache.sandbox_metrics.answer(
        record.id,
        read=functools.partial(pod_metrics, rt, record),
        refresh=functools.partial(_with_current_cpu, rt, record),
        holds=lambda known: runs_exactly(
            rt, record.id, containers=[each.container_id for each in known.container_metrics]
        ),
    )


def _set_current_cpu(rt: Runtime, record: ContainerRecord, *, metrics: pb.ContainerMetrics) -> None:
    """Update the CPU time in a container's metrics; leave them unchanged if the container has exited."""
    place = rt.cgroups.place(record.id, pid=record.state.pid)
    processor = container_processor(rt, record)
    if place is None or processor is None:
        return
    figures = CpuFigures(cpu=processor.cpu, cpu_times=place.group.cpu_times(), at=processor.at)
    current = {metric.name: value for metric in CPU for _, value in metric.values(figures)}
    for metric in metrics.metrics[: len(CPU)]:  # CPU metrics come first
        value = current.get(metric.name)
        if value is not None:
            metric.timestamp = figures.at
            metric.value.value = value


def _network_metrics(rt: Runtime, record: SandboxRecord) -> list[pb.Metric]:
    interfaces = None if pod.host_network(record.config) else interfaces_of(record.state.pid)
    metadata, at = record.config.metadata, time.time_ns()
    pause = _image_name(rt, record.image_id, wanted=rt.config.pod_infra_container_image)
    base = (metadata.name, metadata.namespace, POD, cadvisor_id(rt, record), pause, record.name)
    return [
        pb.Metric(
            name=metric.name,
            timestamp=at,
            metric_type=metric.kind,
            label_values=(*base, interface.name),
            value={"value": metric.value(interface)},  # a dictionary is quicker than a message
        )
        for interface in interfaces or ()
        for metric in NETWORK
    ]


def _container_metrics(
    rt: Runtime,
    sandbox: SandboxRecord,
    record: ContainerRecord,
    reading: Reading | None,
    *,
    device_name: Callable[[int, int], str],
) -> pb.ContainerMetrics | None:
    if reading is None:
        return None
    metadata = sandbox.config.metadata
    spec = record.image_spec
    image = _image_name(rt, record.image_id, wanted=spec.user_specified_image or spec.image)
    name = record.config.metadata.name
    base = (metadata.name, metadata.namespace, name, cadvisor_id(rt, record), image, record.name)
    figures = _figures(rt, record, reading, device_name=device_name)
    return pb.ContainerMetrics(container_id=record.id, metrics=_metrics(CONTAINER, figures, base=base))


def _metrics(
    metrics: Iterable[ContainerMetric[F_contra]], figures: F_contra, *, base: tuple[str, ...]
) -> Iterator[pb.Metric]:
    for metric in metrics:
        for labels, value in metric.values(figures):
            if value is not None:
                yield pb.Metric(
                    name=metric.name,
                    timestamp=figures.at,
                    metric_type=metric.kind,
                    label_values=(*base, *labels),
                    value={"value": value},  # a dictionary is quicker than a message
                )


def _figures(
    rt: Runtime, record: ContainerRecord, reading: Reading, *, device_name: Callable[[int, int], str]
) -> Figures:
    group = reading.place.group
    return Figures(
        cpu=reading.processor.cpu,
        cpu_times=group.cpu_times(),
        memory=reading.memory,
        memory_history=group.memory_history(),
        pids=group.pids(),
        io_psi=reading.io_psi,
        io=group.io(),
        huge_pages=group.huge_pages(),
        processes=processes(group.process_ids()),
        soft_limits=soft_limits(reading.place.pid),
        layer=rt.stats_cache.layers.get(record.id),
        host=record.host,
        started_at=record.state.started_at,
        at=reading.at,
        device_name=device_name,
    )


def _device_name(major: int, minor: int) -> str:
    """Return the path of a block device, such as `/dev/sda`, or its number if it has no name."""
    try:
        return f"/dev/{os.path.basename(os.readlink(_DEVICES / f'{major}:{minor}'))}"  # noqa: PTH119, PTH115 - a text
    except OSError:
        return f"{major}:{minor}"


def _image_name(rt: Runtime, image_id: ImageId, *, wanted: str) -> str:
    """Return an image's name for people; `wanted` if the image is gone."""
    image = rt.view.images.last_known(image_id)
    return wanted if image is None else name_for_people(image, wanted=wanted)
