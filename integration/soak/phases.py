"""The work of a node's life, many times over. Each phase reports the unexpected results of its calls."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from integration.bench.load import AT_ONCE
from integration.bench.pods import ordinary_pod
from integration.bench.setup import Setup
from integration.bench.timed_pod import PodClient, TimedPod
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.server import Server
from integration.sessions import exec_session
from integration.soak.figures import Phase
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

PROBES_AT_ONCE = 48
"""Probes at once; each waits a second for its timeout and does nothing."""
PROBE_SECONDS = 1
TARGETS = 16
"""Pods that are probed and run sessions."""
PROBES = (("sleep", "3600"), ("sh", "-c", "sleep 3600 & sleep 3600"), ("sh", "-c", "trap '' TERM; sleep 3600"))
"""Commands that do not exit: alone, with a child, and ignoring SIGTERM."""
_PROGRESS_SECONDS = 10.0
_BACK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """The node on which the phases run."""

    setup: Setup
    server: Server
    cri: Cri


class Progress:
    """Counts the work done, and prints it every ten seconds. Thread-safe."""

    def __init__(self, name: str, total: int, server: Server) -> None:
        self._name = name
        self._total = total
        self._server = server
        self._lock = threading.Lock()
        self._done = 0
        self._failures: Counter[str] = Counter()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._print, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        print(f"  - {self._name}: {self._total}", flush=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def attempt(self, action: Callable[[], object], *, expected: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """Do a piece of work; any status code but `expected` is a failure."""
        code, words = grpc.StatusCode.OK, ""
        try:
            action()
        except grpc.RpcError as error:
            failed: Any = error
            code, words = failed.code(), str(failed.details())[:80]
        with self._lock:
            self._done += 1
            if code is not expected:
                self._failures[f"{code.name} {words}"] += 1

    def phase(self) -> Phase:
        """Return the work done so far."""
        with self._lock:
            return Phase(
                name=self._name,
                count=self._done,
                seconds=time.monotonic() - self._began,
                rss_mib=self._server.rss() / (1 << 20),
                failures=dict(self._failures),
            )

    def _print(self) -> None:
        while not self._over.wait(_PROGRESS_SECONDS):
            done = self.phase()
            print(
                f"    {done.seconds:5.0f} s: {done.count} of {self._total}, {sum(done.failures.values())} failures, "
                f"{done.rss_mib:.0f} MiB",
                flush=True,
            )


def probes(node: Node, *, count: int) -> Phase:
    """Run execs that exceed their timeout."""
    with Progress("timed-out exec probes", count, node.server) as progress, targets(node) as pods:

        def probe(number: int) -> None:
            command, pod = PROBES[number % len(PROBES)], pods[number % len(pods)]
            progress.attempt(
                lambda: node.cri.exec(pod.container, *command, timeout=PROBE_SECONDS),
                expected=grpc.StatusCode.DEADLINE_EXCEEDED,
            )

        _spread(probe, count, at_once=PROBES_AT_ONCE)
    return progress.phase()


def pods(node: Node, *, count: int) -> Phase:
    """Run pods and remove them."""
    client = PodClient(node.cri)
    with Progress("pods run and removed", count, node.server) as progress:

        def come_and_go(number: int) -> None:
            name = f"soak-{number}"
            config, container = ordinary_pod(name, logs=str(node.setup.logs))

            def both() -> None:
                client.down(Timings(), client.up(Timings(), config=config, container=container))

            progress.attempt(both)
            _remove_tree(node.setup.logs / name)

        _spread(come_and_go, count, at_once=AT_ONCE)
    return progress.phase()


def sessions(node: Node, *, count: int) -> Phase:
    """Open exec sessions at once, then close all of their clients."""
    with Progress("exec sessions at once", count, node.server) as progress, targets(node) as pods:
        with ExitStack() as opened:

            def open_one(number: int) -> None:
                container = pods[number % len(pods)].container
                progress.attempt(lambda: opened.callback(exec_session(node.cri, container, "sleep", "3600").close))

            _spread(open_one, count, at_once=AT_ONCE)
            wait_until(lambda: _sleeping(node, pods) >= count, _BACK_SECONDS)
        wait_until(lambda: _sleeping(node, pods) == 0, _BACK_SECONDS)
    return progress.phase()


def docker_restarts(node: Node, *, count: int) -> Phase:
    """Restart dockerd under pods that keep running."""
    with Progress("restarts of dockerd", count, node.server) as progress, targets(node) as pods:
        for number in range(count):
            node.setup.engine.restart()
            wait_until(lambda: _all_run(node.cri, pods), _BACK_SECONDS)
            progress.attempt(partial(node.cri.exec, pods[number % len(pods)].container, "true"))
    return progress.phase()


@contextmanager
def targets(node: Node) -> Iterator[list[TimedPod]]:
    """Keep some pods up while the block runs."""
    client = PodClient(node.cri)

    def up(number: int) -> TimedPod:
        config, container = ordinary_pod(f"target-{number}", logs=str(node.setup.logs))
        return client.up(Timings(), config=config, container=container)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(up, range(TARGETS)))
        try:
            yield made
        finally:
            list(pool.map(lambda pod: client.down(Timings(), pod), made))


def _spread(action: Callable[[int], None], count: int, *, at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(action, range(count)))


def _sleeping(node: Node, pods: Sequence[TimedPod]) -> int:
    """Return the number of session processes, as Docker lists them."""
    return sum(
        any("sleep 3600" in word for word in row) and not any("sleep 3600 &" in word for word in row)
        for pod in pods
        for row in node.setup.engine.api.top(pod.container)["Processes"]
    ) - len(pods)  # each container's main process


def _all_run(cri: Cri, pods: Sequence[TimedPod]) -> bool:
    try:
        running = {container.id for container in cri.containers() if container.state == pb.CONTAINER_RUNNING}
        ready = {sandbox.id for sandbox in cri.sandboxes() if sandbox.state == pb.SANDBOX_READY}
    except grpc.RpcError:
        return False
    return all(pod.container in running and pod.sandbox in ready for pod in pods)


def _remove_tree(directory: Path) -> None:
    """Remove a pod's logs, as a kubelet does."""
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if directory.exists():
        directory.rmdir()
