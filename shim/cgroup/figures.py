"""What the files of a control group hold, the same for both versions. Bytes and nanoseconds throughout.

None is what the kernel does not report: an old one, a controller that is off, a file that was cut short. It is never
reported as 0, which would be a measurement.
"""

from dataclasses import dataclass

NO_LIMIT = -1
"""What a limit is where there is none, as in the CRI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a group is allowed, by its own files; a group above may allow less. Each NO_LIMIT where there is none."""

    cpu_period: int | None
    """Microseconds."""
    cpu_quota: int | None
    """Microseconds of CPU time in each period."""
    cpu_shares: int | None
    """2 to 262144; version 1 alone."""
    cpu_weight: int | None
    """1 to 10000; version 2 alone."""
    cpuset_cpus: str | None
    """Such as `0-3,8`. Version 1 copies what the group above has; empty in version 2 where nothing was set."""
    cpuset_mems: str | None
    memory: int | None
    memory_swap: int | None
    """Memory and swap together, whatever the version counts in its file."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line of a pressure file: how long tasks were stalled."""

    total: int
    """Nanoseconds since the group was made."""
    avg10: float
    """Per cent of the last 10 seconds; the others of 60 and 300."""
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
    """CPU time of all processes in a group, those that have ended included."""

    usage: int
    psi: Psi | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """How the CPU time divides, and what the quota of the group took away."""

    user: int | None
    system: int | None
    periods: int | None
    throttled_periods: int | None
    throttled: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a group with all groups below it."""

    usage: int
    """Page cache included."""
    working_set: int
    """What cannot be given back easily: usage without the inactive part of the page cache, at least 0."""
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
    """Bytes of swap alone, whatever the version counts in its file; None when there is no limit."""
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
    """What has happened to the memory of a group."""

    peak: int | None
    limit_hits: int | None
    oom_kills: int | None
    kernel: int | None
    """Bytes the kernel itself uses for the group now."""
    reservation: int | None
    """Bytes that are protected from reclaim; None when none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Io:
    """What a group has read from and written to one block device."""

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
    """As the kernel names it in its files: `2MB`."""
    usage: int
    peak: int | None


@dataclass(frozen=True, slots=True)
class Pids:
    """Tasks of a group: processes and their threads."""

    current: int
    limit: int | None
