"""The definition of a metric, and the figures of a container that it takes values from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import Cpu, CpuTimes, HugePages, Io, Memory, MemoryHistory, Pids, Psi
from shim.engine.answers import HostSettings
from shim.stats.network import Interface
from shim.stats.processes import Processes
from shim.stats_cache import FileSystem, LayerUsage

Values = Iterable[tuple[tuple[str, ...], int | None]]
"""Pairs of additional label values and a number. A pair with None is omitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFigures:
    """CPU time of a container at one moment."""

    cpu: Cpu
    cpu_times: CpuTimes
    at: int
    """Nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(CpuFigures):
    """All figures of a container at one moment."""

    memory: Memory
    memory_history: MemoryHistory
    pids: Pids | None
    io_psi: Psi | None
    io: list[Io]
    huge_pages: list[HugePages]
    processes: Processes
    soft_limits: dict[str, int]
    layer: LayerUsage | None
    host: HostSettings
    started_at: int
    device_name: Callable[[int, int], str]

    @property
    def file_system(self) -> FileSystem | None:
        """The file system of the container's layer; None before the first measurement."""
        return self.layer.file_system if self.layer else None


F_contra = TypeVar("F_contra", bound=CpuFigures, contravariant=True)


@dataclass(frozen=True, slots=True)
class ContainerMetric(Generic[F_contra]):
    """A metric of containers."""

    name: str
    help: str
    kind: pb.MetricType
    values: Callable[[F_contra], Values]
    labels: tuple[str, ...] = ()
    """Labels in addition to BASE_LABELS."""


@dataclass(frozen=True, slots=True)
class PodMetric:
    """A metric of a pod's network."""

    name: str
    help: str
    value: Callable[[Interface], int]
    kind: pb.MetricType = pb.COUNTER
    labels: tuple[str, ...] = ("interface",)
