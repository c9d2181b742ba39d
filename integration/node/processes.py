"""The server's and the engine's processes, as the kernel lists them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOG_PROCESS = b"shim.logs.worker"
HELPER = b"shim.hostfs.worker"
EXEC_PROGRAM = b"/shim/own_exec/__main__.py"


@dataclass(frozen=True, slots=True)
class Size:
    """The resources of one process."""

    threads: int
    descriptors: int
    """Without cgroup files."""
    rss_mib: float

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.descriptors} descriptors, {self.rss_mib:.0f} MiB"


def size(pid: int) -> Size:
    """Measure a process."""
    proc = Path("/proc", str(pid))
    pages = int((proc / "statm").read_text().split()[1])
    return Size(
        threads=len(list((proc / "task").iterdir())),
        descriptors=descriptors(pid),
        rss_mib=pages * os.sysconf("SC_PAGESIZE") / (1 << 20),
    )


def descriptors(pid: int) -> int:
    """Return the number of a process's open descriptors, without cgroup files, of which each container has some."""
    return sum(not _is_of_a_group(path) for path in _open_files(pid))


def group_files(pid: int) -> list[str]:
    """Return the paths of a process's open cgroup files."""
    return [path for path in _open_files(pid) if _is_of_a_group(path)]


def _is_of_a_group(path: str) -> bool:
    return path.startswith("/sys/fs/cgroup/")


def _open_files(pid: int) -> Iterator[str]:
    for link in Path("/proc", str(pid), "fd").iterdir():
        with suppress(FileNotFoundError):  # just closed
            yield str(link.readlink())


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies included."""
    found: set[int] = set()
    for path in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            found.update(map(int, path.read_text().split()))
    return sorted(found)


def command(pid: int) -> bytes:
    """Return a process's command line, empty if it has gone.

    Only for our own daemons and their children: it would block on a process that hangs in the kernel.
    """
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def executable(pid: int) -> str:
    """Return the path of a process's executable, empty if it has gone."""
    try:
        return str(Path("/proc", str(pid), "exe").readlink())
    except OSError:
        return ""


def log_process_of(server: int) -> int | None:
    """Return the pid of a server's log process, None while it is down."""
    return _child_of(server, LOG_PROCESS)


def helper_of(server: int) -> int | None:
    """Return the pid of a server's helper process for host paths, None while it is down."""
    return _child_of(server, HELPER)


def exec_program_of(server: int) -> int | None:
    """Return the pid of a server's exec program, None while it is down."""
    return _child_of(server, EXEC_PROGRAM)


def _child_of(server: int, module: bytes) -> int | None:
    found = [pid for pid in children(server) if module in command(pid)]
    return found[0] if found else None


def processes_of(module: bytes) -> set[int]:
    """Return the pids of all processes that run a module of the server. Blocks while a process hangs in the kernel."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # the process has just ended
            name = path.read_bytes().strip()
            # A process executed by a descriptor has its number as name.
            if (name.startswith(b"python") or name.isdigit()) and module in command(int(path.parent.name)):
                found.add(int(path.parent.name))
    return found
