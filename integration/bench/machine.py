"""Describes the machine and the engine, and measures the server's footprint."""

import os
import platform
from pathlib import Path

from integration.bench.figures import Footprint
from integration.bench.report import Docker, Machine
from integration.node.engine import Engine
from integration.node.processes import descriptors
from integration.server import Server


def machine(load_before: float) -> Machine:
    """Describe this machine."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") >> 20,
        kernel=platform.release(),
        python=platform.python_version(),
        load_before=load_before,
        load_after=os.getloadavg()[0],
    )


def docker(engine: Engine) -> Docker:
    """Describe the engine."""
    info = engine.api.info()
    return Docker(
        version=info["ServerVersion"],
        api=engine.api.api_version,
        storage=info["Driver"],
        cgroups=f"v{info['CgroupVersion']} by {info['CgroupDriver']}",
    )


def footprint(server: Server, *, when: str) -> Footprint:
    """Measure the running server without its children."""
    proc = Path("/proc", str(server.daemon.pid))
    return Footprint(
        when=when,
        rss_mib=server.rss() / (1 << 20),
        threads=len(list((proc / "task").iterdir())),
        descriptors=descriptors(server.daemon.pid),
        cpu_seconds=_cpu_seconds(proc),
    )


def _cpu_seconds(proc: Path) -> float:
    # proc(5): fields 14 and 15 of stat, counted after the name, which may contain blanks.
    times = (proc / "stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
