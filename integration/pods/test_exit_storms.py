"""Pods of many containers whose processes exit at once: teardown takes seconds, and containerd keeps nothing.

`--exit-storms` runs the whole matrix; without it a few cases that took minutes when all containers of a pod shared a
containerd-shim.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.node.commands import allowed
from integration.node.containerd import shims, tasks
from integration.pods.kubelet import unused_name
from integration.streaming.leftovers import processes
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SECONDS = 3.0
"""Seconds for StopPodSandbox, RemovePodSandbox and containerd's cleanup, including StopContainer of all containers."""
BESIDE_OTHERS = 10.0
"""The same bound without `--exit-storms`, while other tests run."""

PIDS = {"own pids": pb.CONTAINER, "shared pids": pb.POD, "pids of the node": pb.NODE}
_SCRIPT = "trap 'exit 0' TERM; (: </go/fifo) & wait; x=$(head -c 400000000 /dev/zero | tr '\\0' x)"
"""Waits until the pipe is opened, then allocates more memory than the pod may have."""
_ROOM = 8 << 20
"""The pod's memory limit then, in bytes above its usage."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A pod of many containers, and the starts in progress."""

    served: Served
    id: str
    config: pb.PodSandboxConfig
    go: Path
    containers: list[str]
    starting: list[Future[None]]

    @property
    def cgroup(self) -> str:
        """The path of the pod's control group."""
        return self.config.linux.cgroup_parent


def _end_by_stop_pod_sandbox(storm: Storm) -> None:
    """Leave all containers to StopPodSandbox."""
    del storm


def _end_by_stop_container(storm: Storm) -> None:
    """Call StopContainer for all at once, as a kubelet does. A shell that just started needs the grace period."""
    cri = storm.served.cri
    listed = [container.id for container in cri.containers(pod_sandbox_id=storm.id)]
    with ThreadPoolExecutor(len(listed)) as pool:
        list(pool.map(lambda each: cri.stop_container(each, timeout=1), listed))


def _end_by_memory(storm: Storm) -> None:
    """Make each container allocate more memory than the pod may have, until the kernel has killed all of them."""
    group = Path("/sys/fs/cgroup/memory", storm.cgroup.strip("/"))
    if not group.is_dir():
        pytest.skip("the limit of a pod is set by a file of cgroup v1 here")
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + _ROOM))
    pipe = os.open(storm.go / "fifo", os.O_WRONLY)
    try:
        if all(future.done() for future in storm.starting):
            wait_until(lambda: not _running(storm))
    finally:
        os.close(pipe)


def _end_by_signal(storm: Storm) -> None:
    """Kill every process of the pod from the node."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if storm.cgroup in (path / "cgroup").read_text():
                os.kill(int(path.name), signal.SIGKILL)


ENDS: dict[str, Callable[[Storm], None]] = {
    "StopPodSandbox": _end_by_stop_pod_sandbox,
    "StopContainer": _end_by_stop_container,
    "OOM": _end_by_memory,
    "kill -9": _end_by_signal,
}
_ALL = list(product((20, 30, 50), ("own pids", "shared pids"), ("started", "starting"), ENDS))
_FEW = [
    (20, "shared pids", "started", "StopContainer"),
    (30, "shared pids", "started", "kill -9"),
    (50, "own pids", "starting", "StopPodSandbox"),
    (30, "own pids", "started", "OOM"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "end" in metafunc.fixturenames:
        chosen = _ALL if metafunc.config.getoption("--exit-storms") else _FEW
        ids = [f"{size}, {pids}, {phase}, {end}" for size, pids, phase, end in chosen]
        metafunc.parametrize(("size", "pids", "phase", "end"), chosen, ids=ids)


@pytest.fixture
def bound(pytestconfig: pytest.Config) -> float:
    """Seconds that the teardown of a pod may take."""
    return allowed(SECONDS if pytestconfig.getoption("--exit-storms") else BESIDE_OTHERS)


@pytest.fixture
def make_storm(served: Served, images: Images, tmp_path: Path) -> Iterator[Callable[..., Storm]]:
    """Provide a maker of pods whose containers start concurrently; in the end nothing of the pods may be left."""
    before = served.snapshot(), shims(served.engine), tasks(served.engine)
    with ThreadPoolExecutor(64) as pool:
        yield lambda **how: _make(served, images, tmp_path, pool, **how)
    assert (served.snapshot(), shims(served.engine), tasks(served.engine)) == before


def _make(
    served: Served, images: Images, home: Path, pool: ThreadPoolExecutor, *, size: int, pids: str, most: int = 0
) -> Storm:
    """Start a pod's containers in threads, and return once `most` of them, or all, are started."""
    cri, name = served.cri, unused_name("storm")
    os.mkfifo(home / "fifo")
    options = pb.NamespaceOption(pid=PIDS[pids])
    group = f"{served.engine.cgroup_parent}/{name}"
    linux = pb.LinuxPodSandboxConfig(
        cgroup_parent=group, security_context=pb.LinuxSandboxSecurityContext(namespace_options=options)
    )
    config = pod_config(name, log_directory=str(served.dirs.logs / name), linux=linux)
    sandbox = cri.run(config)
    made: list[str] = []
    fields: dict[str, Any] = {
        "image": images.busybox,
        "command": ("sh", "-c", _SCRIPT),
        "mounts": [pb.Mount(container_path="/go", host_path=str(home))],
        "linux": pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(namespace_options=options),
        ),
    }

    def start(number: int) -> None:
        container = cri.create(sandbox, container_config(f"c{number}", log_path=f"{number}.log", **fields), pod=config)
        made.append(container)
        cri.start(container)

    storm = Storm(served, sandbox, config, home, made, [pool.submit(start, number) for number in range(size)])
    if most:
        wait_until(lambda: len(_running(storm)) >= most)
    else:
        for future in storm.starting:
            future.result()
    return storm


def _running(storm: Storm) -> list[str]:
    listed = storm.served.cri.containers(pod_sandbox_id=storm.id)
    return [container.id for container in listed if container.state == pb.CONTAINER_RUNNING]


def _remove(storm: Storm) -> None:
    storm.served.cri.stop(storm.id)
    storm.served.cri.remove(storm.id)


def test_a_pod_whose_containers_exit_at_once_is_torn_down_in_seconds(
    served: Served, make_storm: Callable[..., Storm], bound: float, size: int, pids: str, phase: str, end: str
) -> None:
    before = shims(served.engine), tasks(served.engine)
    storm = make_storm(size=size, pids=pids, most=size // 8 if phase == "starting" else 0)

    began = time.monotonic()
    ENDS[end](storm)
    if end in {"OOM", "kill -9"}:
        began = time.monotonic()
    _remove(storm)
    wait_until(lambda: (shims(served.engine), tasks(served.engine)) == before)
    took = time.monotonic() - began

    for future in storm.starting:
        assert isinstance(future.exception(), grpc.RpcError | None)
    assert took < bound


@pytest.mark.parametrize(
    ("size", "pids", "execs"),
    [(10, "shared pids", 4), (8, "own pids", 8), (1, "own pids", 60)],
)
def test_a_pod_with_running_execs_is_torn_down_in_seconds(
    served: Served, make_storm: Callable[..., Storm], bound: float, size: int, pids: str, execs: int
) -> None:
    before = shims(served.engine), tasks(served.engine)
    storm = make_storm(size=size, pids=pids)
    ended: list[object] = []
    marker = f"600.{int(unused_name('')[1:], 16)}"

    def run(container: str) -> None:
        try:
            ended.append(served.cri.exec(container, "sleep", marker, timeout=0))
        except grpc.RpcError as error:
            ended.append(error)

    running = [threading.Thread(target=run, args=(each,)) for each in storm.containers * execs]
    for thread in running:
        thread.start()
    wait_until(lambda: len(processes(marker)) == len(running))

    began = time.monotonic()
    _end_by_stop_container(storm)
    _remove(storm)
    wait_until(lambda: (shims(served.engine), tasks(served.engine)) == before)
    took = time.monotonic() - began
    for thread in running:
        thread.join()
    assert len(ended) == len(running)
    assert took < bound
