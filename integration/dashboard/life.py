"""The life of the recorded node: a kubelet's periodic calls, and faults one after the other."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count

import grpc

from integration.conftest import Served
from integration.cri import container_config, pod_config
from integration.dashboard.recording import Event
from integration.node import images
from integration.node.commands import NodeError
from integration.node.images import BUSYBOX, File
from integration.node.isolation import Node
from integration.node.processes import log_process_of
from integration.node.registry import Registry
from integration.sessions import exec_client, exec_url
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SECONDS = 390
SUBNET = "10.96.0.0/29"
"""A range with addresses for five pods."""

_PULLED = ("shop:1", "shop:2", "shop:3")
_PULLED_BYTES = 16 << 20
_WEB = "trap 'exit 0' TERM; while :; do echo 'GET / HTTP/1.1 200'; sleep 0.2 & wait $!; done"
_DEAF = "sleep 3600"  # as process 1 it ignores SIGTERM: the end of the grace period kills it
_ENDS = "trap 'exit 0' TERM; echo begin; sleep 3600 & wait"
_FLOOD = (
    "trap 'exit 0' TERM; for n in $(seq 30); do yes 'a line of many, one after the other' | head -n 8000; sleep 1; done"
)
_GRACE_SECONDS = 3
_LIMIT = pb.LinuxContainerResources(memory_limit_in_bytes=16 << 20)
_OUTAGE_SECONDS = 45
_FULL = 4
"""Pods that are attempted with too few free addresses."""


@dataclass(frozen=True, slots=True)
class Life:
    """The recorded node, and its events so far."""

    served: Served
    references: Sequence[str]
    """Images in the registry."""
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    events: list[Event] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=count)
    standing: list[str] = field(default_factory=list)
    """Containers that stay for the whole recording."""

    def until(self, seconds: float) -> None:
        """Wait until this second of the recording."""
        self.over.wait(max(0.0, self.began + seconds - time.monotonic()))

    def note(self, what: str) -> None:
        """Record an event now."""
        seconds = round(time.monotonic() - self.began)
        self.events.append(Event(seconds, what))
        print(f"{seconds:4} s: {what}", flush=True)

    def pod(
        self, name: str, command: str, *, image: str = BUSYBOX, limits: pb.LinuxContainerResources | None = None
    ) -> tuple[str, str]:
        """Run a pod with a container, and return both ids."""
        cri = self.served.cri
        name = f"{name}-{next(self.names)}"
        config = pod_config(name, log_directory=str(self.served.dirs.logs / name))
        sandbox = cri.run(config)
        linux = pb.LinuxContainerConfig(resources=limits)
        main = container_config("main", image=image, command=("sh", "-c", command), log_path="main/0.log", linux=linux)
        container = cri.create(sandbox, main, pod=config)
        cri.start(container)
        return sandbox, container

    def remove(self, sandbox: str, container: str) -> None:
        """Remove a pod as a kubelet does, which queries it once more at the end."""
        cri = self.served.cri
        cri.stop_container(container, timeout=_GRACE_SECONDS)
        cri.stop(sandbox)
        cri.remove_container(container)
        cri.remove(sandbox)
        with suppress(grpc.RpcError):  # NOT_FOUND
            cri.sandbox_status(sandbox)


def published(served: Served, node: Node, registry: Registry) -> list[str]:
    """Push images with a unique layer, and return their references. The engine does not keep them."""
    api = served.engine.api
    references = []
    for name in _PULLED:
        made = images.busybox_image(node.busybox, reference=f"local/{name}")
        made = replace(made, files=(*made.files, File("usr/data", os.urandom(_PULLED_BYTES))))
        images.load(api, made)
        references.append(registry.push(api, made.reference, name=name))
        api.remove_image(made.reference)
    return references


def live(life: Life) -> None:
    """Run the life of the node for SECONDS. Errors other than gRPC errors end it."""
    life.standing.extend(life.pod("web", _WEB)[1] for _ in range(2))
    loops: list[tuple[float, Callable[[], None]]] = [
        (1, lambda: _relist(life)),
        (10, lambda: _keep_house(life)),
        (2, lambda: _probe(life)),
        (5, lambda: _have_session(life)),
        (4, lambda: _come_and_go(life)),
    ]
    with ThreadPoolExecutor(len(loops)) as pool, _events_followed(life):
        running = [pool.submit(_repeat, life, seconds, action) for seconds, action in loops]
        try:
            for seconds, step in _STEPS:
                life.until(seconds)
                _check(running)
                try:
                    step(life)
                except grpc.RpcError as error:  # the machine is too busy; a test reports missing series
                    print(f"{step.__name__} has failed: {error}", flush=True)
            life.until(SECONDS)
        finally:
            life.over.set()
    _check(running)


def _check(running: Sequence[Future[None]]) -> None:
    for each in running:
        if each.done():
            each.result()


def _repeat(life: Life, seconds: float, action: Callable[[], None]) -> None:
    while not life.over.wait(seconds):
        with suppress(grpc.RpcError):  # as while Docker is down; the next turn follows
            action()


# --- the calls of a kubelet ------------------------------------------------------------------------------------


def _relist(life: Life) -> None:
    cri = life.served.cri
    for sandbox in cri.sandboxes():
        cri.sandbox_status(sandbox.id)
    for container in cri.containers():
        cri.container_status(container.id)


def _keep_house(life: Life) -> None:
    cri = life.served.cri
    cri.runtime.Version(pb.VersionRequest())
    cri.runtime.Status(pb.StatusRequest())
    cri.runtime.ListContainerStats(pb.ListContainerStatsRequest())
    cri.images.ListImages(pb.ListImagesRequest())
    cri.images.ImageFsInfo(pb.ImageFsInfoRequest())


def _probe(life: Life) -> None:
    for container in life.standing:
        life.served.cri.exec(container, "cat", "/etc/hostname", timeout=10)


def _have_session(life: Life) -> None:
    with suppress(NodeError, OSError):  # without Docker the session is refused or ends early
        _session(exec_url(life.served.cri, life.standing[0], "uname"))


def _session(url: str) -> None:
    session = exec_client(url)
    try:
        session.drain()
    finally:
        session.close()


def _come_and_go(life: Life) -> None:
    cri = life.served.cri
    number = next(life.names)
    for left in cri.sandboxes():  # left by a failed turn
        if left.metadata.name.startswith("job-"):
            cri.stop(left.id)
            cri.remove(left.id)
    image = pb.ImageSpec(image=life.references[number % len(life.references)])
    cri.images.PullImage(pb.PullImageRequest(image=image))
    pod = life.pod("job", _DEAF if number % 4 == 0 else _ENDS, image=image.image)
    life.over.wait(2)
    life.remove(*pod)
    cri.images.RemoveImage(pb.RemoveImageRequest(image=image))


@contextmanager
def _events_followed(life: Life) -> Iterator[None]:
    stream = life.served.cri.runtime.GetContainerEvents(pb.GetEventsRequest())

    def follow() -> None:
        with suppress(grpc.RpcError):  # CANCELLED
            for _ in stream:
                pass

    thread = threading.Thread(target=follow, name="events")
    thread.start()
    try:
        yield
    finally:
        stream.cancel()
        thread.join()


# --- faults of the node ---------------------------------------------------------------------------------------


def _flood(life: Life) -> None:
    life.note("A container begins to write 8,000 lines each second, for half a minute.")
    pod = life.pod("flood", _FLOOD)
    life.until(life.events[-1].seconds + 40)
    life.remove(*pod)


def _run_out_of_memory(life: Life) -> None:
    life.note("A container exceeds its memory limit, and the kernel kills it.")
    cri = life.served.cri
    sandbox, container = life.pod("greedy", "tail /dev/zero", limits=_LIMIT)
    wait_until(lambda: cri.container_status(container).state == pb.CONTAINER_EXITED)
    reason = cri.container_status(container).reason
    life.remove(sandbox, container)
    if reason != "OOMKilled":
        raise NodeError(f"the container that exceeded its memory limit ended with reason {reason}")


def _run_out_of_addresses(life: Life) -> None:
    life.note("More pods are run than the range of addresses is for, four times.")
    began = life.events[-1].seconds
    for turn in range(4):
        made = []
        for _ in range(_FULL):
            with suppress(grpc.RpcError):
                made.append(life.pod("one-too-many", _ENDS))
        for pod in made:
            life.remove(*pod)
        life.until(began + 10 * (turn + 1))


def _pull_a_missing_image(life: Life) -> None:
    life.note("An image is pulled that the registry does not have, four times.")
    began = life.events[-1].seconds
    missing = pb.ImageSpec(image=life.references[0].rpartition(":")[0] + ":missing")
    for turn in range(4):
        with suppress(grpc.RpcError):
            life.served.cri.images.PullImage(pb.PullImageRequest(image=missing))
        life.until(began + 10 * (turn + 1))


def _lose_docker(life: Life) -> None:
    life.note("The Docker Engine stops; containers go on (live-restore).")
    life.served.engine.stop()
    life.until(life.events[-1].seconds + _OUTAGE_SECONDS)
    life.served.engine.start()
    life.served.wait_answers()
    life.note("The Docker Engine has started again, and the server has found it.")


def _be_refused(life: Life) -> None:
    life.note("A probe hangs, and a client comes to the streaming server with a token that was used, six times.")
    began = life.events[-1].seconds
    for turn in range(6):
        with suppress(grpc.RpcError):  # DEADLINE_EXCEEDED
            life.served.cri.exec(life.standing[0], "sleep", "60", timeout=1)
        url = exec_url(life.served.cri, life.standing[0], "true")
        _session(url)
        with suppress(NodeError):  # the session is refused
            _session(url)
        life.until(began + 8 * (turn + 1))


def _kill_log_process(life: Life) -> None:
    life.note("The process that writes container logs is killed.")
    process = log_process_of(life.served.server.daemon.pid)
    if process is None:
        raise NodeError("no log process runs")
    os.kill(process, signal.SIGKILL)


_STEPS: tuple[tuple[float, Callable[[Life], None]], ...] = (
    (35, _flood),
    (80, _run_out_of_memory),
    (100, _run_out_of_addresses),
    (145, _pull_a_missing_image),
    (190, _lose_docker),
    (265, _be_refused),
    (325, _kill_log_process),
)
