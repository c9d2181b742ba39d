"""The locks by which RPCs exclude each other."""

from contextlib import AbstractContextManager

from shim.api.v1 import api_pb2 as pb
from shim.base.lease import Lease
from shim.base.locks import KeyedLocks
from shim.domain.ids import ContainerId, ImageId, SandboxId

PAUSE_EXIT_SECONDS = 10.0
"""How long the end of a pause container may delay the next: Docker waits as long for a container that it kills."""

STARTS_OF_A_POD = 4
"""Concurrent container starts of a pod. Kubelets start containers one after the other. More starts at a time finish no
sooner on two processors, and StopPodSandbox has to wait for each start in progress."""


class Locks:
    """The locks between RPCs. A wait raises Cancelled or DeadlineExceeded at the end of the caller's scope."""

    def __init__(self) -> None:
        self._locks = KeyedLocks()
        self._pause_exits = Lease(PAUSE_EXIT_SECONDS)

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each lock that is held, for display, like `KeyedLocks.rows`."""
        return [*self._locks.rows(), *self._pause_exits.rows("pause exit")]

    def sandbox(self, name: str) -> AbstractContextManager[None]:
        """Hold the name of a pod sandbox: serialises its run, stop, removal and update."""
        return self._locks.hold(("sandbox", name))

    def container(self, name: str) -> AbstractContextManager[None]:
        """Hold the name of a container while it is created."""
        return self._locks.hold(("container", name))

    def limits(self, container_id: ContainerId) -> AbstractContextManager[None]:
        """Hold the limits of a container: serialises start, update and recovery, which write them."""
        return self._locks.hold(("limits", container_id))

    def start(self, sandbox_id: SandboxId, metadata: pb.ContainerMetadata) -> AbstractContextManager[None]:
        """Hold name and attempt of a container in a pod while it is started. Taken after `limits`."""
        return self._locks.hold(("start", sandbox_id, metadata.name, metadata.attempt))

    def start_place(self, sandbox_id: SandboxId) -> AbstractContextManager[None]:
        """Hold a place among the STARTS_OF_A_POD of a pod during a start. Taken after `start` and `log`."""
        return self._locks.hold_place(("starts", sandbox_id), places=STARTS_OF_A_POD)

    def shim_group(self, sandbox_id: SandboxId) -> AbstractContextManager[None]:
        """Hold the containerd-shim of a pod while a container that joins it is created. Taken after `container`."""
        return self._locks.hold(("shim group", sandbox_id))

    def log(self, path: str) -> AbstractContextManager[None]:
        """Hold a CRI log while a container that writes to it is started. Taken after `start`."""
        return self._locks.hold(("log", path))

    def image(self, image_id: ImageId) -> AbstractContextManager[None]:
        """Hold an image while it is removed."""
        return self._locks.hold(("image", image_id))

    def pause_exit(self) -> AbstractContextManager[None]:
        """Serialise the ends of pause containers, but do not wait for an end that hangs. Taken after `sandbox`."""
        return self._pause_exits.hold(what="wait for the end of another pause container")

    def checkpoint(self) -> AbstractContextManager[None]:
        """Write or copy a single checkpoint of the node at a time: each uses the disk fully."""
        return self._locks.hold("checkpoint")

    def cni_conf(self) -> AbstractContextManager[None]:
        """Hold the CNI configuration file that the server writes."""
        return self._locks.hold("cni conf")
