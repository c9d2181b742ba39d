"""Reads while many containers are in their grace period."""

import time
from concurrent.futures import ThreadPoolExecutor

from integration.bench.reads.lists import AT_ONCE, Pod
from integration.bench.timings import Timings
from integration.cri import Cri, container_config
from integration.node.images import BUSYBOX
from shim.api.v1 import api_pb2 as pb

GRACE_SECONDS = 30
SETTLE_SECONDS = 3.0
"""Seconds from the last stop sent to the first read."""
READ_SECONDS = 10.0
DEAF = ("sh", "-c", "trap '' TERM; sleep 3600")


def reads_beside_stops(cri: Cri, pods: list[Pod], *, count: int) -> dict[str, list[float]]:
    """Return the milliseconds of reads while `count` containers that ignore SIGTERM are being stopped."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        containers = list(pool.map(lambda number: _started(cri, pods[number % len(pods)], number), range(count)))
    timings = Timings()
    with ThreadPoolExecutor(count) as pool:
        stops = [pool.submit(cri.stop_container, container, timeout=GRACE_SECONDS) for container in containers]
        time.sleep(SETTLE_SECONDS)
        until = time.monotonic() + READ_SECONDS
        while time.monotonic() < until:
            timings.call("Version", lambda: cri.runtime.Version(pb.VersionRequest()))
            timings.call("ListContainers", lambda: cri.runtime.ListContainers(pb.ListContainersRequest()))
            timings.call("ListPodSandbox", lambda: cri.runtime.ListPodSandbox(pb.ListPodSandboxRequest()))
            time.sleep(0.1)
        if any(stop.done() for stop in stops):
            raise AssertionError("a stop ended although its container ignores SIGTERM")
        # A second stop without grace kills the containers, so that the first stops end.
        with ThreadPoolExecutor(AT_ONCE) as killers:
            list(killers.map(cri.stop_container, containers))
        for stop in stops:
            stop.result(GRACE_SECONDS + 30)
    return timings.took


def _started(cri: Cri, pod: Pod, number: int) -> str:
    config = container_config(f"deaf-{number}", image=BUSYBOX, command=DEAF)
    container = cri.create(pod.id, config, pod=pod.config)
    cri.start(container)
    return container
