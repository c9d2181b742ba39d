"""Record the cgroup files of a pod's container: `python -m integration.vm.record DRIVER DIRECTORY`.

Runs inside `integration.vm`; see tests/cgroup/data/README.md. The container has a quota, is pushed into swap, and reads
and writes a disk. It is frozen while its files are copied, so that they match Docker's stats.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from integration.node.control_groups import CgroupDriver
from integration.node.engine import Engine
from integration.node.images import BUSYBOX, busybox_image, load
from integration.node.packages import BUSYBOX as BUSYBOX_BUNDLE
from integration.node.packages import NEWER, STABLE, ensure_unpacked
from integration.waiting import wait_until

_POD = "11111111-2222-3333-4444-555555555555"
_PARENTS: dict[CgroupDriver, str] = {
    "cgroupfs": f"/kubepods/burstable/pod{_POD}",
    "systemd": f"kubepods-burstable-pod{_POD.replace('-', '_')}.slice",
}
"""The kubelet's cgroup parent of a pod, by cgroup driver."""
_MIB = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
_SECONDS = 300
_WORK = """
dd if=/dev/zero of=/io/data bs=64k count=256 oflag=direct
dd if=/io/data of=/dev/null bs=64k
held=$(head -c 16777216 /dev/zero | tr '\\0' x)
dd if=/dev/zero of=/dev/shm/data bs=1M count=140
sleep 3600 &
touch /io/done
while :; do :; done
echo "$held"
"""
_FILES = (
    *("cgroup.procs", "cpu.*", "memory.*", "pids.*", "io.*"),
    *("hugetlb.[0-9]*B.current", "hugetlb.[0-9]*B.max"),
)
_LIMITS = {
    "Memory": 128 * _MIB,
    "MemorySwap": 192 * _MIB,
    "CpuPeriod": 100_000,
    "CpuQuota": 60_000,
    "PidsLimit": 100,
    "ShmSize": 200 * _MIB,
    "NetworkMode": "none",
}


def main() -> None:
    """Record a container."""
    driver, directory = cast("CgroupDriver", sys.argv[1]), Path(sys.argv[2])
    binaries = ensure_unpacked(NEWER).path + ensure_unpacked(STABLE).path
    engine = Engine(
        driver,
        binaries=binaries,
        home=Path("/disk/engine"),
        cgroup_driver=driver,
        cgroup_parent="kubepods.slice" if driver == "systemd" else "/kubepods",
        settings={"bridge": "none", "iptables": False, "ip6tables": False},
    )
    engine.start()
    load(engine.api, busybox_image(ensure_unpacked(BUSYBOX_BUNDLE).root / "bin/busybox"))
    container = _started(engine, driver)
    engine.api.pause(container)
    _record(engine, container, directory=directory)
    engine.close()


def _started(engine: Engine, driver: CgroupDriver) -> str:
    shared = Path("/disk/io")
    shared.mkdir()
    host = engine.api.create_host_config(binds=[f"{shared}:/io"]) | _LIMITS | {"CgroupParent": _PARENTS[driver]}
    container = str(engine.api.create_container(BUSYBOX, ["sh", "-c", _WORK], host_config=host)["Id"])
    engine.api.start(container)
    wait_until((shared / "done").exists, seconds=_SECONDS)
    group = _group_of(engine, container)
    # Wait until the quota has throttled it.
    wait_until(lambda: "nr_throttled 0\n" not in (group / "cpu.stat").read_text(), seconds=_SECONDS)
    return container


def _group_of(engine: Engine, container: str) -> Path:
    return _CGROUP / Path(f"/proc/{_pid_of(engine, container)}/cgroup").read_text().strip().removeprefix("0::/")


def _pid_of(engine: Engine, container: str) -> int:
    return int(engine.api.inspect_container(container)["State"]["Pid"])


def _record(engine: Engine, container: str, *, directory: Path) -> None:
    pid, group = _pid_of(engine, container), _group_of(engine, container)
    reported: dict[str, Any] = engine.api.stats(container, stream=False, one_shot=True)
    for place in (group, group.parent):
        _copy(place, directory / "tree" / place.relative_to(_CGROUP))
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " cgroup2 " in line]
    (directory / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    (directory / "proc-cgroup").write_text(Path(f"/proc/{pid}/cgroup").read_text())
    parts = ("cpu_stats", "memory_stats", "pids_stats", "blkio_stats")
    about = {
        "kernel": os.uname().release,
        "engine": engine.version,
        "container": container,
        "stats": {part: reported[part] for part in parts},
    }
    (directory / "docker.json").write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")


def _copy(group: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for file in (file for pattern in _FILES for file in group.glob(pattern)):
        with suppress(OSError):  # some files are write-only
            (directory / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
