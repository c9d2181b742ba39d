"""Builds CRI messages from figures. If the kernel does not report a figure, its field stays unset."""

from collections.abc import Sequence

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.figures import Cpu, Memory, Pressure, Psi
from shim.cni.arguments import INTERFACE
from shim.stats.network import Interface
from shim.stats_cache import LayerUsage

LARGEST = (1 << 64) - 1
"""Maximum value of a field."""


def value(number: int | None) -> pb.UInt64Value | None:
    """Wrap a number, capped at LARGEST, which sums of counters may exceed."""
    return None if number is None else pb.UInt64Value(value=min(number, LARGEST))


def cpu_usage(cpu: Cpu, *, at: int, rate: int) -> pb.CpuUsage:
    """Return a CpuUsage; `at` in ns since the epoch, `rate` in nanoseconds per second."""
    message = pb.CpuUsage()
    set_cpu_usage(message, cpu, at=at, rate=rate)
    return message


def set_cpu_usage(message: pb.CpuUsage, cpu: Cpu, *, at: int, rate: int) -> None:
    """Overwrite all fields of a CpuUsage."""
    message.timestamp = at
    message.usage_core_nano_seconds.value = min(cpu.usage, LARGEST)
    message.usage_nano_cores.value = min(rate, LARGEST)
    message.ClearField("psi")
    if cpu.psi is not None:
        _set_psi_stats(message.psi, cpu.psi)


def memory_usage(memory: Memory, *, at: int) -> pb.MemoryUsage:
    """Return a MemoryUsage; `at` in ns since the epoch."""
    return pb.MemoryUsage(
        timestamp=at,
        working_set_bytes=value(memory.working_set),
        usage_bytes=value(memory.usage),
        available_bytes=value(memory.available),
        rss_bytes=value(memory.rss),
        page_faults=value(memory.page_faults),
        major_page_faults=value(memory.major_page_faults),
        psi=psi_stats(memory.psi),
    )


def swap_usage(memory: Memory, *, at: int) -> pb.SwapUsage | None:
    """Return a SwapUsage; None if the kernel does not account swap."""
    if memory.swap_usage is None:
        return None
    return pb.SwapUsage(
        timestamp=at,
        swap_usage_bytes=value(memory.swap_usage),
        swap_available_bytes=value(memory.swap_available),
    )


def io_usage(psi: Psi | None, *, at: int) -> pb.IoUsage | None:
    """Return an IoUsage; None if the kernel does not report pressure."""
    return None if psi is None else pb.IoUsage(timestamp=at, psi=psi_stats(psi))


def psi_stats(psi: Psi | None) -> pb.PsiStats | None:
    """Return a PsiStats; None if the kernel does not report pressure."""
    if psi is None:
        return None
    message = pb.PsiStats()
    _set_psi_stats(message, psi)
    return message


def filesystem_usage(layer: LayerUsage) -> pb.FilesystemUsage:
    """Return the FilesystemUsage of a container's layer."""
    return pb.FilesystemUsage(
        timestamp=layer.at,
        fs_id=pb.FilesystemIdentifier(mountpoint=layer.store),
        used_bytes=value(layer.used_bytes),
        inodes_used=value(layer.inodes),
    )


def network_usage(interfaces: Sequence[Interface], *, at: int) -> pb.NetworkUsage | None:
    """Return the NetworkUsage of all interfaces; None if there are none.

    The default interface is CNI's, else the first. A kubelet crashes without a default interface.
    """
    usages = [_interface_usage(interface) for interface in interfaces]
    if not usages:
        return None
    default = next((usage for usage in usages if usage.name == INTERFACE), usages[0])
    return pb.NetworkUsage(timestamp=at, default_interface=default, interfaces=usages)


def _interface_usage(interface: Interface) -> pb.NetworkInterfaceUsage:
    return pb.NetworkInterfaceUsage(
        name=interface.name,
        rx_bytes=value(interface.rx_bytes),
        rx_errors=value(interface.rx_errors),
        tx_bytes=value(interface.tx_bytes),
        tx_errors=value(interface.tx_errors),
    )


def _set_psi_stats(message: pb.PsiStats, psi: Psi) -> None:
    _set_psi_data(message.Some, psi.some)
    if psi.full is not None:
        _set_psi_data(message.Full, psi.full)


def _set_psi_data(message: pb.PsiData, pressure: Pressure) -> None:
    message.Total, message.Avg10 = pressure.total, pressure.avg10
    message.Avg60, message.Avg300 = pressure.avg60, pressure.avg300
