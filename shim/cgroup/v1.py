"""A group of version 1: a directory for each controller (Documentation/admin-guide/cgroup-v1 of the kernel)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from shim.cgroup import parse
from shim.cgroup.figures import Cpu, CpuTimes, HugePages, Io, Limits, Memory, MemoryHistory, Pids, Psi
from shim.cgroup.files import OpenFiles, names, read, read_list, with_descendants
from shim.cgroup.parse import number


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupV1:
    """A group of version 1: the directories of its controllers, empty for a controller that is not mounted."""

    cpu_directory: str
    cpuacct: str
    memory_directory: str
    pids_directory: str
    blkio: str
    hugetlb: str
    cpuset_directory: str = ""
    unified: str = ""
    """The group's directory in the version 2 tree of a hybrid machine, which reports pressure; empty if it has none."""
    cpu_files: OpenFiles = field(default_factory=OpenFiles, compare=False, repr=False)
    """Files that are read for every answer."""

    def cpu(self) -> Cpu | None:
        """Return CPU time and pressure."""
        usage = number(self.cpu_files.read(f"{self.cpuacct}/cpuacct.usage"))
        return None if usage is None else Cpu(usage, self._psi("cpu", self.cpu_files.read))

    def cpu_times(self) -> CpuTimes:
        """Return user and system time."""
        stat = parse.flat(self.cpu_files.read(f"{self.cpu_directory}/cpu.stat"))
        return CpuTimes(
            user=number(self.cpu_files.read(f"{self.cpuacct}/cpuacct.usage_user")),
            system=number(self.cpu_files.read(f"{self.cpuacct}/cpuacct.usage_sys")),
            periods=number(stat.get(b"nr_periods")),
            throttled_periods=number(stat.get(b"nr_throttled")),
            throttled=number(stat.get(b"throttled_time")),
        )

    def memory(self) -> Memory | None:
        """Return memory and swap in use.

        Reads two files: memory.stat also has swap, and the limits as its parent groups narrow them.
        """
        usage = number(read(f"{self.memory_directory}/memory.usage_in_bytes"))
        if usage is None:
            return None
        stat = parse.flat(read(f"{self.memory_directory}/memory.stat"))
        inactive_file = number(stat.get(b"total_inactive_file"))
        limit = parse.limit(stat.get(b"hierarchical_memory_limit"))
        both = parse.limit(stat.get(b"hierarchical_memsw_limit"))
        return Memory(
            usage=usage,
            working_set=max(0, usage - (inactive_file or 0)),
            limit=limit,
            rss=number(stat.get(b"total_rss")),
            cache=number(stat.get(b"total_cache")),
            mapped_file=number(stat.get(b"total_mapped_file")),
            active_file=number(stat.get(b"total_active_file")),
            inactive_file=inactive_file,
            page_faults=number(stat.get(b"total_pgfault")),
            major_page_faults=number(stat.get(b"total_pgmajfault")),
            swap_usage=number(stat.get(b"total_swap")),
            swap_limit=None if both is None or limit is None else max(0, both - limit),
            psi=self._psi("memory"),
        )

    def memory_history(self) -> MemoryHistory:
        """Return peak and failures."""
        directory = self.memory_directory
        control = parse.flat(read(f"{directory}/memory.oom_control"))
        return MemoryHistory(
            peak=number(read(f"{directory}/memory.max_usage_in_bytes")),
            limit_hits=number(read(f"{directory}/memory.failcnt")),
            oom_kills=number(control.get(b"oom_kill")),
            kernel=number(read(f"{directory}/memory.kmem.usage_in_bytes")),
            reservation=parse.limit(read(f"{directory}/memory.soft_limit_in_bytes")),
        )

    def pids(self) -> Pids | None:
        """Return tasks and their limit."""
        current = number(read(f"{self.pids_directory}/pids.current"))
        return None if current is None else Pids(current, number(read(f"{self.pids_directory}/pids.max")))

    def io_psi(self) -> Psi | None:
        """Return the pressure of block I/O."""
        return self._psi("io")

    def io(self) -> list[Io]:
        """Return block I/O by device, from the counters of throttling and of BFQ: each misses some devices."""
        return parse.fullest(self._io_counted_by("throttle"), self._io_counted_by("bfq"))

    def huge_pages(self) -> list[HugePages]:
        """Return huge pages by size."""
        found = []
        for name in names(self.hugetlb) if self.hugetlb else ():
            size = name.removeprefix("hugetlb.").removesuffix(".usage_in_bytes")
            if f"hugetlb.{size}.usage_in_bytes" != name or "." in size:
                continue
            usage = number(read(f"{self.hugetlb}/{name}"))
            if usage is not None:
                peak = number(read(f"{self.hugetlb}/hugetlb.{size}.max_usage_in_bytes"))
                found.append(HugePages(size=size, usage=usage, peak=peak))
        return found

    def process_ids(self) -> list[int]:
        """Return the processes of this group and its descendants."""
        directories = with_descendants(self.memory_directory)
        return [pid for each in directories for pid in parse.process_ids(read_list(f"{each}/cgroup.procs"))]

    def limits(self) -> Limits:
        """Return the limits of CPU and memory."""
        return Limits(
            cpu_period=number(read(f"{self.cpu_directory}/cpu.cfs_period_us")),
            cpu_quota=parse.parse_limit(read(f"{self.cpu_directory}/cpu.cfs_quota_us")),
            cpu_shares=number(read(f"{self.cpu_directory}/cpu.shares")),
            cpu_weight=None,
            cpuset_cpus=parse.line(read(f"{self.cpuset_directory}/cpuset.cpus")),
            cpuset_mems=parse.line(read(f"{self.cpuset_directory}/cpuset.mems")),
            memory=parse.parse_limit(read(f"{self.memory_directory}/memory.limit_in_bytes")),
            memory_swap=parse.parse_limit(read(f"{self.memory_directory}/memory.memsw.limit_in_bytes")),
        )

    def limit_files(self) -> list[str]:
        """Return the paths of the files that an OCI runtime writes to change limits."""
        found = {
            self.cpu_directory: ("cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares"),
            self.cpuset_directory: ("cpuset.cpus", "cpuset.mems"),
            self.memory_directory: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            self.pids_directory: ("pids.max",),
        }
        return [f"{directory}/{name}" for directory, files in found.items() if directory for name in files]

    def cpuset(self) -> tuple[str, str]:
        """Return the CPUs and memory nodes in use."""
        found = [parse.line(read(f"{self.cpuset_directory}/cpuset.{name}")) for name in ("cpus", "mems")]
        return found[0] or "", found[1] or ""

    def memory_file(self, memory: int) -> tuple[str, str]:
        """Return the path and text of a memory limit."""
        return f"{self.memory_directory}/memory.limit_in_bytes", str(memory)

    def swap_file(self, memory_swap: int, *, memory: int) -> tuple[str, str]:  # noqa: ARG002 - as in `Group`
        """Return the path and text of a limit of memory plus swap."""
        return f"{self.memory_directory}/memory.memsw.limit_in_bytes", str(memory_swap)

    def huge_page_files(self, size: str) -> list[str]:
        """Return the paths of the limits of huge pages of a size.

        A hybrid machine may have the controller in its version 2 tree.
        """
        if self.hugetlb:
            return [f"{self.hugetlb}/hugetlb.{size}.{name}" for name in ("limit_in_bytes", "rsvd.limit_in_bytes")]
        return [f"{self.unified}/hugetlb.{size}.{name}" for name in ("max", "rsvd.max")] if self.unified else []

    def unified_file(self, key: str) -> str:  # noqa: ARG002 - as in `Group`
        """Return an empty path: this version lacks the file."""
        return ""

    def _io_counted_by(self, policy: str) -> list[Io]:
        sizes = read(f"{self.blkio}/blkio.{policy}.io_service_bytes_recursive") or b""
        # Most groups have no line for any device, and then the other file need not be read.
        operations = read(f"{self.blkio}/blkio.{policy}.io_serviced_recursive") if b":" in sizes else None
        return parse.blkio(byte_lines=sizes, operation_lines=operations)

    def _psi(self, resource: str, reading: Callable[[str], bytes | None] = read) -> Psi | None:
        return parse.psi(reading(f"{self.unified}/{resource}.pressure")) if self.unified else None
