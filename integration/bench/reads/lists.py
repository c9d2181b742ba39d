"""Pods to be listed, and the timed reads of a kubelet."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from integration.bench.timings import Timings
from integration.cri import HOST_NETWORK, Cri, container_config, pod_config
from integration.node.engine import Engine
from integration.node.images import BUSYBOX
from shim.api.v1 import api_pb2 as pb

AT_ONCE = 8
TIMES = 200
CONTAINERS = 2
"""Containers of each pod."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox, its configuration, and its containers, which were never started."""

    id: str
    config: pb.PodSandboxConfig
    containers: Sequence[str]


def pods_up(cri: Cri, *, first: int, count: int) -> list[Pod]:
    """Run `count` pods, numbered from `first`."""

    def up(number: int) -> Pod:
        config = pod_config(f"read-{number}", linux=HOST_NETWORK)
        sandbox = cri.run(config)
        made = [
            cri.create(sandbox, container_config(f"c{each}", image=BUSYBOX), pod=config) for each in range(CONTAINERS)
        ]
        return Pod(sandbox, config, made)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(up, range(first, first + count)))


def timed_reads(cri: Cri, engine: Engine, *, pod: Pod) -> dict[str, list[float]]:
    """Return the milliseconds of each call; the calls alternate, so that drift of the machine affects all alike."""
    timings = Timings()
    image = pb.ImageStatusRequest(image=pb.ImageSpec(image=BUSYBOX))
    calls: dict[str, Callable[[], object]] = {
        "ListContainers": lambda: cri.runtime.ListContainers(pb.ListContainersRequest()),
        "ListPodSandbox": lambda: cri.runtime.ListPodSandbox(pb.ListPodSandboxRequest()),
        "ContainerStatus": lambda: cri.container_status(pod.containers[0]),
        "PodSandboxStatus": lambda: cri.sandbox_status(pod.id),
        "ListImages": lambda: cri.images.ListImages(pb.ListImagesRequest()),
        "ImageStatus": lambda: cri.images.ImageStatus(image),
    }
    for number in range(TIMES):
        for name, call in calls.items():
            timings.call(name, call)
        if number % 10 == 0:
            timings.call("Docker's GET /containers/json", lambda: engine.api.containers(all=True))
    return timings.took
