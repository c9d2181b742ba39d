"""A group of version 2: one directory (Documentation/admin-guide/cgroup-v2.rst of the kernel)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from shim.cgroup import parse
from shim.cgroup.figures import NO_LIMIT, Cpu, CpuTimes, HugePages, Io, Limits, Memory, MemoryHistory, Pids, Psi
from shim.cgroup.files import OpenFiles, names, read, read_list, with_descendants
from shim.cgroup.parse import number


@dataclass(frozen=True, slots=True)
class GroupV2:
    """A group of version 2."""

    directory: str
    cpu_files: OpenFiles = field(default_factory=OpenFiles, compare=False, repr=False)
    """Files that are read for every answer."""

    def cpu(self) -> Cpu | None:
        """Return CPU time and pressure."""
        usage = parse.microseconds(parse.flat(self.cpu_files.read(f"{self.directory}/cpu.stat")).get(b"usage_usec"))
        return None if usage is None else Cpu(usage, self._psi("cpu", self.cpu_files.read))

    def cpu_times(self) -> CpuTimes:
        """Return user and system time."""
        stat = parse.flat(self.cpu_files.read(f"{self.directory}/cpu.stat"))
        return CpuTimes(
            user=parse.microseconds(stat.get(b"user_usec")),
            system=parse.microseconds(stat.get(b"system_usec")),
            periods=number(stat.get(b"nr_periods")),
            throttled_periods=number(stat.get(b"nr_throttled")),
            throttled=parse.microseconds(stat.get(b"throttled_usec")),
        )

    def memory(self) -> Memory | None:
        """Return memory and swap in use."""
        usage = number(read(f"{self.directory}/memory.current"))
        if usage is None:
            return None
        stat = parse.flat(read(f"{self.directory}/memory.stat"))
        inactive_file = number(stat.get(b"inactive_file"))
        return Memory(
            usage=usage,
            working_set=max(0, usage - (inactive_file or 0)),
            limit=parse.limit(read(f"{self.directory}/memory.max")),
            rss=number(stat.get(b"anon")),
            cache=number(stat.get(b"file")),
            mapped_file=number(stat.get(b"file_mapped")),
            active_file=number(stat.get(b"active_file")),
            inactive_file=inactive_file,
            page_faults=number(stat.get(b"pgfault")),
            major_page_faults=number(stat.get(b"pgmajfault")),
            swap_usage=number(read(f"{self.directory}/memory.swap.current")),
            swap_limit=parse.limit(read(f"{self.directory}/memory.swap.max")),
            psi=self._psi("memory"),
        )

    def memory_history(self) -> MemoryHistory:
        """Return peak."""
        events = parse.flat(read(f"{self.directory}/memory.events"))
        stat = parse.flat(read(f"{self.directory}/memory.stat"))
        return MemoryHistory(
            peak=number(read(f"{self.directory}/memory.peak")),
            limit_hits=number(events.get(b"max")),
            oom_kills=number(events.get(b"oom_kill")),
            kernel=number(stat.get(b"kernel")) or _kernel_before_5_18(stat),
            reservation=number(read(f"{self.directory}/memory.low")) or None,
        )

    def pids(self) -> Pids | None:
        """Return tasks and their limit."""
        current = number(read(f"{self.directory}/pids.current"))
        return None if current is None else Pids(current, number(read(f"{self.directory}/pids.max")))

    def io_psi(self) -> Psi | None:
        """Return the pressure of block I/O."""
        return self._psi("io")

    def io(self) -> list[Io]:
        """Return block I/O by device."""
        return parse.io_stat(read(f"{self.directory}/io.stat"))

    def huge_pages(self) -> list[HugePages]:
        """Return huge pages by size; this version has no peak."""
        found = []
        for name in names(self.directory):
            size = name.removeprefix("hugetlb.").removesuffix(".current")
            if f"hugetlb.{size}.current" != name or "." in size:
                continue
            usage = number(read(f"{self.directory}/{name}"))
            if usage is not None:
                found.append(HugePages(size=size, usage=usage, peak=None))
        return found

    def process_ids(self) -> list[int]:
        """Return the processes of this group and its descendants."""
        directories = with_descendants(self.directory)
        return [pid for each in directories for pid in parse.process_ids(read_list(f"{each}/cgroup.procs"))]

    def limits(self) -> Limits:
        """Return the limits of CPU and memory."""
        quota, _, period = (read(f"{self.directory}/cpu.max") or b"").partition(b" ")
        memory = parse.parse_limit(read(f"{self.directory}/memory.max"))
        swap = parse.parse_limit(read(f"{self.directory}/memory.swap.max"))
        unlimited = NO_LIMIT in (memory, swap)
        return Limits(
            cpu_period=number(period),
            cpu_quota=parse.parse_limit(quota),
            cpu_shares=None,
            cpu_weight=number(read(f"{self.directory}/cpu.weight")),
            cpuset_cpus=parse.line(read(f"{self.directory}/cpuset.cpus")),
            cpuset_mems=parse.line(read(f"{self.directory}/cpuset.mems")),
            memory=memory,
            memory_swap=None if memory is None or swap is None else NO_LIMIT if unlimited else memory + swap,
        )

    def limit_files(self) -> list[str]:
        """Return the paths of the files that an OCI runtime writes to change limits."""
        files = ("cpu.max", "cpu.weight", "cpuset.cpus", "cpuset.mems", "memory.max", "memory.swap.max", "pids.max")
        return [f"{self.directory}/{name}" for name in files]

    def cpuset(self) -> tuple[str, str]:
        """Return the CPUs and memory nodes in use."""
        found = [parse.line(read(f"{self.directory}/cpuset.{name}.effective")) for name in ("cpus", "mems")]
        return found[0] or "", found[1] or ""

    def memory_file(self, memory: int) -> tuple[str, str]:
        """Return the path and text of a memory limit."""
        return f"{self.directory}/memory.max", _limit_text(memory)

    def swap_file(self, memory_swap: int, *, memory: int) -> tuple[str, str]:
        """Return the path and text of a limit of memory plus swap."""
        swap = NO_LIMIT if memory_swap == NO_LIMIT else memory_swap - memory
        return f"{self.directory}/memory.swap.max", _limit_text(swap)

    def huge_page_files(self, size: str) -> list[str]:
        """Return the paths of the limits of huge pages of a size."""
        return [f"{self.directory}/hugetlb.{size}.{name}" for name in ("max", "rsvd.max")]

    def unified_file(self, key: str) -> str:
        """Return the path of a version 2 file by its name."""
        return f"{self.directory}/{key}"

    def _psi(self, resource: str, reading: Callable[[str], bytes | None] = read) -> Psi | None:
        return parse.psi(reading(f"{self.directory}/{resource}.pressure"))


def _limit_text(value: int) -> str:
    return "max" if value == NO_LIMIT else str(value)


def _kernel_before_5_18(stat: dict[bytes, bytes]) -> int | None:
    parts = [number(stat.get(key)) for key in (b"kernel_stack", b"slab", b"percpu", b"pagetables")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
