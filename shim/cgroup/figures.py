"""The figures of a control group, the same for both versions. Bytes and nanoseconds unless a field says otherwise.

None means that the kernel did not report the figure: it is too old, the controller is off, or the file was cut short.
Such a figure never becomes 0, which would be a measurement.
"""

from dataclasses import dataclass

NO_LIMIT = -1
"""Stands for "unlimited", as in the CRI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits in a group's own files; a parent group may allow less. An absent limit is NO_LIMIT."""

    cpu_period: int | None
    """Microseconds."""
    cpu_quota: int | None
    """Microseconds of CPU time in each period."""
    cpu_shares: int | None
    """2 to 262144; version 1 only."""
    cpu_weight: int | None
    """1 to 10000; version 2 only."""
    cpuset_cpus: str | None
    """Such as `0-3,8`. Version 1 copies the parent's list; version 2 leaves it empty until it is set."""
    cpuset_mems: str | None
    memory: int | None
    memory_swap: int | None
    """Memory plus swap, in both versions."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line of a pressure file: how long tasks were stalled."""

    total: int
    """Nanoseconds since the group was made."""
    avg10: float
    """Per cent of the last 10 seconds; `avg60` and `avg300` of the last 60 and 300 seconds."""
    avg60: float
    avg300: float


@dataclass(frozen=True, slots=True)
class Psi:
    """A pressure file: some tasks were stalled, or all of them at the same time."""

    some: Pressure
    full: Pressure | None
    """Missing for the CPU before Linux 5.13."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time of all processes of a group, including exited processes."""

    usage: int
    psi: Psi | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """User and system time, and throttling by the quota of the group."""

    user: int | None
    system: int | None
    periods: int | None
    throttled_periods: int | None
    throttled: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a group and its descendants."""

    usage: int
    """Page cache included."""
    working_set: int
    """Usage without the inactive page cache, which the kernel reclaims easily; at least 0."""
    limit: int | None
    """None when there is none."""
    rss: int | None
    cache: int | None
    mapped_file: int | None
    active_file: int | None
    inactive_file: int | None
    page_faults: int | None
    major_page_faults: int | None
    swap_usage: int | None
    swap_limit: int | None
    """Swap without memory, in both versions; None when there is no limit."""
    psi: Psi | None = None

    @property
    def available(self) -> int | None:
        """Return the bytes up to the limit, None without one."""
        return None if self.limit is None else max(0, self.limit - self.working_set)

    @property
    def swap_available(self) -> int | None:
        """Return the bytes of swap up to the limit, None without one."""
        if self.swap_limit is None or self.swap_usage is None:
            return None
        return max(0, self.swap_limit - self.swap_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHistory:
    """Memory events of a group since it was made."""

    peak: int | None
    limit_hits: int | None
    oom_kills: int | None
    kernel: int | None
    """Current kernel memory of the group."""
    reservation: int | None
    """Bytes protected from reclaim; None for no protection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Io:
    """Reads and writes of a group on one block device."""

    major: int
    minor: int
    read_bytes: int
    write_bytes: int
    reads: int
    writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages:
    """Huge pages of one size that a group uses."""

    size: str
    """The kernel's name of the size, such as `2MB`."""
    usage: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class Pids:
    """Tasks of a group: processes and their threads."""

    current: int
    limit: int | None
