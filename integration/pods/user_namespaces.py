"""Pods in user namespaces, configured as a kubelet does; helpers of several test files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.conftest import Served
from integration.cri import Cri
from integration.pods.kubelet import Kubelet, Pod, in_context, secured
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.root import ORDERS

SIZE = 1 << 16
FIRST = 40_000 * SIZE
"""The host's id of the pods' root. A kubelet gives ranges up to the highest ids, also above 2^31."""
IMAGE_USER = 1000
"""A user's id in the image."""


def mapping(first: int = FIRST, length: int = SIZE) -> list[pb.IDMapping]:
    """Return the mapping of a pod's ids."""
    return [pb.IDMapping(host_id=first, container_id=0, length=length)]


def own_users(first: int = FIRST, *, pid: "pb.NamespaceMode" = pb.CONTAINER, **options: Any) -> pb.NamespaceOption:
    """Return the namespaces of a pod that has its own users."""
    users = pb.UserNamespace(mode=pb.POD, uids=mapping(first), gids=mapping(first))
    return pb.NamespaceOption(userns_options=users, pid=pid, **options)


def volume(path: Path, *, at: str = "/volume", first: int = FIRST, **fields: Any) -> pb.Mount:
    """Return a volume as a kubelet gives it to a pod in a user namespace."""
    ids = mapping(first)
    return pb.Mount(host_path=str(path), container_path=at, uidMappings=ids, gidMappings=ids, **fields)


@contextmanager
def kubelet_of(served: Served, image: str) -> Iterator[Kubelet]:
    """Make pods inside the block; afterwards no pod and no order may be left."""
    before, orders = served.snapshot(), orders_of(served)
    made = Kubelet(served.cri, image)
    wait_until(lambda: features(served.cri).user_namespaces, seconds=10)
    yield made
    made.remove_all()
    assert before.added(served.snapshot()) == []
    assert orders_of(served) == orders


def features(cri: Cri) -> pb.RuntimeHandlerFeatures:
    """Return the features of the default handler."""
    answer = cri.runtime.Status(pb.StatusRequest())
    return next(handler.features for handler in answer.runtime_handlers if handler.name == "")


def orders_of(served: Served) -> set[str]:
    """Return the ids of the containers that have an order."""
    directory = served.engine.home / ORDERS
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def pod_of(kubelet: Kubelet, first: int = FIRST, **options: Any) -> Pod:
    """Run a pod with its own users."""
    return kubelet.pod(**in_context(namespace_options=own_users(first, **options)))


def created(kubelet: Kubelet, pod: Pod, *command: str, context: dict[str, Any] | None = None, **fields: Any) -> str:
    """Create a container in the namespaces of its pod; `context` is its security context."""
    options = pod.config.linux.security_context.namespace_options
    return kubelet.created(pod, *command, **secured(namespace_options=options, **(context or {})), **fields)


def started(kubelet: Kubelet, pod: Pod, *command: str, context: dict[str, Any] | None = None, **fields: Any) -> str:
    """Create and start a container in the namespaces of its pod."""
    container = created(kubelet, pod, *command, context=context, **fields)
    kubelet.cri.start(container)
    return container


def mounts_of_host() -> list[str]:
    """Return the path of every mount in the node's mount namespace, with duplicates."""
    return sorted(os.fsdecode(line.split()[4]) for line in Path("/proc/self/mountinfo").read_bytes().splitlines())
