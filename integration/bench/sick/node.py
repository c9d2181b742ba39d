"""The pods of this benchmark, on the pod network, with containers that ignore SIGTERM."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from integration.bench.setup import Setup
from integration.cri import Cri, container_config, pod_config
from integration.node.images import BUSYBOX
from shim.api.v1 import api_pb2 as pb

AT_ONCE = 8
DEAF = ("sh", "-c", "trap '' TERM; while :; do sleep 3600; done")
"""Ignores SIGTERM, and survives a kill of its child."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox and its configuration."""

    id: str
    config: pb.PodSandboxConfig


def pods_up(cri: Cri, setup: Setup, *, count: int) -> list[Pod]:
    """Run `count` pods on the pod network."""

    def up(number: int) -> Pod:
        config = pod_config(f"sick-{number}", log_directory=f"{setup.logs}/sick-{number}")
        return Pod(cri.run(config), config)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(up, range(count)))


def containers_up(cri: Cri, pods: Sequence[Pod], *, first: int, count: int) -> list[str]:
    """Start `count` containers that ignore SIGTERM, numbered from `first` and spread over the pods."""

    def up(number: int) -> str:
        pod, name = pods[number % len(pods)], f"deaf-{number}"
        config = container_config(name, image=BUSYBOX, command=DEAF, log_path=f"{name}/0.log")
        container = cri.create(pod.id, config, pod=pod.config)
        cri.start(container)
        return container

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(up, range(first, first + count)))


def pods_down(cri: Cri, pods: Sequence[Pod]) -> None:
    """Remove the pods with all their containers."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda pod: cri.remove(pod.id), pods))
