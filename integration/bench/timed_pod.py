"""A pod through a CRI server, timed by a CRI client."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from integration.bench.pods import GRACE_SECONDS, LIMITS
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node.images import BUSYBOX
from shim.api.v1 import api_pb2 as pb


@dataclass(frozen=True, slots=True)
class TimedPod:
    """A pod that a server runs: ids of its sandbox and of its only container."""

    sandbox: str
    container: str


class PodClient:
    """Runs and removes pods through a server. Thread-safe."""

    def __init__(self, cri: Cri) -> None:
        self._cri = cri

    def up(self, timings: Timings, *, config: pb.PodSandboxConfig, container: pb.ContainerConfig) -> TimedPod:
        """Run a pod with a container; creates the log directory first, as the kubelet does."""
        cri = self._cri
        Path(config.log_directory, container.log_path).parent.mkdir(parents=True, exist_ok=True)
        sandbox = timings.call("RunPodSandbox", lambda: cri.run(config))
        made = timings.call("CreateContainer", lambda: cri.create(sandbox, container, pod=config))
        timings.call("StartContainer", lambda: cri.start(made))
        return TimedPod(sandbox, made)

    def exercise(self, timings: Timings, pod: TimedPod, *, times: int) -> None:
        """Read everything `times` times, then run a command and change a limit."""
        for _ in range(times):
            for name, read in self._reads(pod).items():
                timings.call(name, read)
        timings.call("ExecSync", lambda: self._cri.exec(pod.container, "true"))
        update = pb.UpdateContainerResourcesRequest(container_id=pod.container, linux=LIMITS)
        timings.call("UpdateContainerResources", lambda: self._cri.runtime.UpdateContainerResources(update))

    def down(self, timings: Timings, pod: TimedPod) -> None:
        """Stop and remove the pod, in the kubelet's order."""
        cri = self._cri
        timings.call("StopContainer", lambda: cri.stop_container(pod.container, timeout=GRACE_SECONDS))
        timings.call("StopPodSandbox", lambda: cri.stop(pod.sandbox))
        timings.call("RemoveContainer", lambda: cri.remove_container(pod.container))
        timings.call("RemovePodSandbox", lambda: cri.remove(pod.sandbox))

    def _reads(self, pod: TimedPod) -> dict[str, Callable[[], object]]:
        cri, image = self._cri, pb.ImageSpec(image=BUSYBOX)
        return {
            "Version": lambda: cri.runtime.Version(pb.VersionRequest()),
            "Status": lambda: cri.runtime.Status(pb.StatusRequest()),
            "ListPodSandbox": cri.sandboxes,
            "ListContainers": cri.containers,
            "PodSandboxStatus": lambda: cri.sandbox_status(pod.sandbox),
            "ContainerStatus": lambda: cri.container_status(pod.container),
            "ListImages": lambda: cri.images.ListImages(pb.ListImagesRequest()),
            "ImageStatus": lambda: cri.images.ImageStatus(pb.ImageStatusRequest(image=image)),
        }
