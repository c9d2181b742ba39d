"""The metrics of pods and containers that the kubelet exports: name, help text, labels, and source of each value.

Names and meanings are cAdvisor's, because dashboards and alerts query them. The CRI has only integer values, so
fractions of a second are cut off.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from shim.api.v1 import api_pb2 as pb
from shim.base.times import SECOND
from shim.cgroup.figures import Io, Psi
from shim.cgroup.shares import DEFAULT_PERIOD, DEFAULT_SHARES
from shim.stats.metric import ContainerMetric, CpuFigures, Figures, PodMetric, Values
from shim.stats_cache import FileSystem, LayerUsage

F = TypeVar("F", bound=CpuFigures)
_Metrics = tuple[ContainerMetric[Figures], ...]

BASE_LABELS = ("pod", "namespace", "container", "id", "image", "name")
"""Labels of every metric; some metrics append more."""


def descriptor(metric: ContainerMetric[Figures] | PodMetric) -> pb.MetricDescriptor:
    """Return the CRI descriptor of a metric."""
    return pb.MetricDescriptor(name=metric.name, help=metric.help, label_keys=[*BASE_LABELS, *metric.labels])


def _one(value: Callable[[F], int | None]) -> Callable[[F], Values]:
    return lambda figures: [((), value(figures))]


def _seconds(nanoseconds: int | None) -> int | None:
    return None if nanoseconds is None else nanoseconds // SECOND


def _cpu_counter(name: str, help: str, value: Callable[[CpuFigures], int | None]) -> ContainerMetric[CpuFigures]:  # noqa: A002 - Prometheus's word
    return ContainerMetric(name, help, pb.COUNTER, _one(value))


def _counter(name: str, help: str, value: Callable[[Figures], int | None]) -> ContainerMetric[Figures]:  # noqa: A002 - Prometheus's word
    return ContainerMetric(name, help, pb.COUNTER, _one(value))


def _gauge(name: str, help: str, value: Callable[[Figures], int | None]) -> ContainerMetric[Figures]:  # noqa: A002 - Prometheus's word
    return ContainerMetric(name, help, pb.GAUGE, _one(value))


def _some(psi: Psi | None) -> int | None:
    return None if psi is None else psi.some.total // SECOND


def _full(psi: Psi | None) -> int | None:
    return None if psi is None or psi.full is None else psi.full.total // SECOND


def _by_device(value: Callable[[Io], int]) -> Callable[[Figures], Values]:
    return lambda figures: [((figures.device_name(io.major, io.minor),), value(io)) for io in figures.io]


def _of_layer(value: Callable[[LayerUsage, FileSystem], int]) -> Callable[[Figures], Values]:
    """Return the values of the file system that holds a container's layer, once the layer is measured."""

    def values(figures: Figures) -> Iterator[tuple[tuple[str, ...], int]]:
        layer, system = figures.layer, figures.file_system
        if layer is not None and system is not None:
            yield (figures.device_name(system.major, system.minor),), value(layer, system)

    return values


def _device_usage(figures: Figures) -> Iterator[tuple[tuple[str, ...], int | None]]:
    for io in figures.io:
        device = (figures.device_name(io.major, io.minor), str(io.major), str(io.minor))
        yield (*device, "Read"), io.read_bytes
        yield (*device, "Write"), io.write_bytes


def _failures(figures: Figures) -> Iterator[tuple[tuple[str, ...], int | None]]:
    memory = figures.memory
    for kind, value in (("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)):
        # A container's group has no child groups of other containers, so both scopes have the same value.
        yield (kind, "container"), value
        yield (kind, "hierarchy"), value


CPU: tuple[ContainerMetric[CpuFigures], ...] = (
    _cpu_counter(
        "container_cpu_user_seconds_total", "User CPU time, in seconds.", lambda f: _seconds(f.cpu_times.user)
    ),
    _cpu_counter(
        "container_cpu_system_seconds_total", "System CPU time, in seconds.", lambda f: _seconds(f.cpu_times.system)
    ),
    ContainerMetric(
        "container_cpu_usage_seconds_total",
        "CPU time, in seconds.",
        pb.COUNTER,
        lambda f: [(("total",), f.cpu.usage // SECOND)],
        ("cpu",),
    ),
    _cpu_counter("container_cpu_cfs_periods_total", "Periods of the CPU quota so far.", lambda f: f.cpu_times.periods),
    _cpu_counter(
        "container_cpu_cfs_throttled_periods_total",
        "Periods throttled by the CPU quota.",
        lambda f: f.cpu_times.throttled_periods,
    ),
    _cpu_counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Time throttled by the CPU quota, in seconds.",
        lambda f: _seconds(f.cpu_times.throttled),
    ),
)

MEMORY: _Metrics = (
    _gauge("container_memory_cache", "Page cache, in bytes.", lambda f: f.memory.cache),
    _gauge("container_memory_rss", "Anonymous memory, in bytes.", lambda f: f.memory.rss),
    _gauge(
        "container_memory_kernel_usage",
        "Memory the kernel uses for the container, in bytes.",
        lambda f: f.memory_history.kernel,
    ),
    _gauge("container_memory_mapped_file", "Mapped files in memory, in bytes.", lambda f: f.memory.mapped_file),
    # Without swap the value is known to be 0.
    _gauge("container_memory_swap", "Swap in use, in bytes.", lambda f: f.memory.swap_usage or 0),
    _counter("container_memory_failcnt", "Times the memory limit was reached.", lambda f: f.memory_history.limit_hits),
    _gauge("container_memory_usage_bytes", "Memory in use, page cache included, in bytes.", lambda f: f.memory.usage),
    _gauge(
        "container_memory_max_usage_bytes",
        "Peak of memory in use, in bytes; before Linux 5.19 the current use.",
        lambda f: f.memory.usage if f.memory_history.peak is None else f.memory_history.peak,
    ),
    _gauge(
        "container_memory_working_set_bytes",
        "Memory that cannot easily be given back, in bytes.",
        lambda f: f.memory.working_set,
    ),
    ContainerMetric(
        "container_memory_failures_total", "Page faults.", pb.COUNTER, _failures, ("failure_type", "scope")
    ),
    _counter(
        "container_oom_events_total", "Processes killed because memory ran out.", lambda f: f.memory_history.oom_kills
    ),
)

HUGE_PAGES: _Metrics = (
    ContainerMetric(
        "container_hugetlb_usage_bytes",
        "Huge pages in use, in bytes.",
        pb.GAUGE,
        lambda f: [((pages.size,), pages.usage) for pages in f.huge_pages],
        ("pagesize",),
    ),
    ContainerMetric(
        "container_hugetlb_max_usage_bytes",
        "Most huge pages that were in use, in bytes.",
        pb.GAUGE,
        lambda f: [((pages.size,), pages.peak) for pages in f.huge_pages],
        ("pagesize",),
    ),
)

DISK: _Metrics = (
    ContainerMetric(
        "container_fs_inodes_free",
        "Free inodes of the file system with the container's layer.",
        pb.GAUGE,
        _of_layer(lambda _, system: system.inodes_free),
        ("device",),
    ),
    ContainerMetric(
        "container_fs_inodes_total",
        "Inodes of the file system with the container's layer.",
        pb.GAUGE,
        _of_layer(lambda _, system: system.inodes),
        ("device",),
    ),
    ContainerMetric(
        "container_fs_limit_bytes",
        "Size of the file system with the container's layer, in bytes.",
        pb.GAUGE,
        _of_layer(lambda _, system: system.size),
        ("device",),
    ),
    ContainerMetric(
        "container_fs_usage_bytes",
        "Size of the container's writable layer, in bytes.",
        pb.GAUGE,
        _of_layer(lambda layer, _: layer.used_bytes),
        ("device",),
    ),
    ContainerMetric(
        "container_fs_reads_bytes_total", "Bytes read.", pb.COUNTER, _by_device(lambda io: io.read_bytes), ("device",)
    ),
    ContainerMetric("container_fs_reads_total", "Reads.", pb.COUNTER, _by_device(lambda io: io.reads), ("device",)),
    ContainerMetric(
        "container_fs_writes_bytes_total",
        "Bytes written.",
        pb.COUNTER,
        _by_device(lambda io: io.write_bytes),
        ("device",),
    ),
    ContainerMetric("container_fs_writes_total", "Writes.", pb.COUNTER, _by_device(lambda io: io.writes), ("device",)),
    ContainerMetric(
        "container_blkio_device_usage_total",
        "Bytes read from and written to block devices.",
        pb.COUNTER,
        _device_usage,
        ("device", "major", "minor", "operation"),
    ),
)

PROCESSES: _Metrics = (
    _gauge("container_file_descriptors", "Open file descriptors.", lambda f: f.processes.descriptors),
    _gauge("container_processes", "Processes.", lambda f: f.processes.count),
    _gauge("container_sockets", "Open sockets.", lambda f: f.processes.sockets),
    _gauge("container_threads", "Threads.", lambda f: f.processes.threads),
    _gauge(
        "container_threads_max",
        "Threads the container may have, 0 for any number.",
        lambda f: None if f.pids is None else f.pids.limit or 0,
    ),
    ContainerMetric(
        "container_ulimits_soft",
        "Soft limits of the container's first process.",
        pb.GAUGE,
        lambda f: [((name,), limit) for name, limit in f.soft_limits.items()],
        ("ulimit",),
    ),
)

SPECIFICATION: _Metrics = (
    _gauge("container_spec_cpu_period", "CPU period, in microseconds.", lambda f: f.host.cpu_period or DEFAULT_PERIOD),
    _gauge("container_spec_cpu_shares", "CPU shares.", lambda f: f.host.cpu_shares or DEFAULT_SHARES),
    _gauge(
        "container_spec_cpu_quota",
        "CPU time the container may use in each period, in microseconds.",
        # Dashboards divide by this value, so a container without a quota must not report it.
        lambda f: f.host.cpu_quota if f.host.cpu_quota > 0 else None,
    ),
    _gauge("container_spec_memory_limit_bytes", "Memory limit, in bytes; 0 for none.", lambda f: f.memory.limit or 0),
    _gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Memory that is protected from reclaim, in bytes.",
        lambda f: f.memory_history.reservation or 0,
    ),
    _gauge(
        "container_spec_memory_swap_limit_bytes",
        "Limit of memory and swap together, in bytes; 0 for none.",
        lambda f: max(0, f.host.memory_and_swap),
    ),
    _gauge(
        "container_start_time_seconds",
        "Start of the container, seconds since the epoch.",
        lambda f: _seconds(f.started_at),
    ),
    _gauge("container_last_seen", "When these figures were read, seconds since the epoch.", lambda f: _seconds(f.at)),
)

PRESSURE: _Metrics = (
    _counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Time that all tasks waited for CPU, in seconds.",
        lambda f: _full(f.cpu.psi),
    ),
    _counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Time that some task waited for CPU, in seconds.",
        lambda f: _some(f.cpu.psi),
    ),
    _counter(
        "container_pressure_memory_stalled_seconds_total",
        "Time that all tasks waited for memory, in seconds.",
        lambda f: _full(f.memory.psi),
    ),
    _counter(
        "container_pressure_memory_waiting_seconds_total",
        "Time that some task waited for memory, in seconds.",
        lambda f: _some(f.memory.psi),
    ),
    _counter(
        "container_pressure_io_stalled_seconds_total",
        "Time that all tasks waited for block I/O, in seconds.",
        lambda f: _full(f.io_psi),
    ),
    _counter(
        "container_pressure_io_waiting_seconds_total",
        "Time that some task waited for block I/O, in seconds.",
        lambda f: _some(f.io_psi),
    ),
)

CONTAINER: _Metrics = (*CPU, *MEMORY, *HUGE_PAGES, *DISK, *PROCESSES, *SPECIFICATION, *PRESSURE)

NETWORK = (
    PodMetric("container_network_receive_bytes_total", "Bytes received.", lambda i: i.rx_bytes),
    PodMetric("container_network_receive_packets_total", "Packets received.", lambda i: i.rx_packets),
    PodMetric("container_network_receive_packets_dropped_total", "Packets dropped on receipt.", lambda i: i.rx_dropped),
    PodMetric("container_network_receive_errors_total", "Errors on receipt.", lambda i: i.rx_errors),
    PodMetric("container_network_transmit_bytes_total", "Bytes sent.", lambda i: i.tx_bytes),
    PodMetric("container_network_transmit_packets_total", "Packets sent.", lambda i: i.tx_packets),
    PodMetric(
        "container_network_transmit_packets_dropped_total", "Packets dropped before sending.", lambda i: i.tx_dropped
    ),
    PodMetric("container_network_transmit_errors_total", "Errors when sending.", lambda i: i.tx_errors),
)

EVERY: tuple[ContainerMetric[Figures] | PodMetric, ...] = (*CONTAINER, *NETWORK)
