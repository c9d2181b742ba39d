"""The pods, their commands, and the kubelet's knowledge of them."""

from dataclasses import dataclass, field
from pathlib import Path

from integration.chaos.plan import Kind, NewPod
from integration.cri import container_config, pod_config
from integration.node.images import BUSYBOX
from integration.pods.kubelet import in_context, secured
from integration.pods.user_namespaces import own_users
from shim.api.v1 import api_pb2 as pb

UID = "io.kubernetes.pod.uid"
JOB_LINES = 200
_COUNT = "echo $i; i=$((i+1))"
_SERVICE = (
    "trap 'exit 0' TERM; i=0; while :; do "
    f"n=0; while [ $n -lt 20 ]; do {_COUNT}; n=$((n+1)); done; sleep 1 & wait $!; done"
)
SERVICE = ("sh", "-c", _SERVICE)
"""Counts up, about 20 lines a second, and exits on SIGTERM."""
JOB = ("sh", "-c", f"i=0; while [ $i -lt {JOB_LINES} ]; do {_COUNT}; done")
_MOUNT = "/volume"


@dataclass(slots=True)
class Made:
    """A created container: the path of its log, and Docker's losses counted before it (-1: unknown)."""

    log: Path
    losses: int


@dataclass(slots=True)
class ChaosPod:
    """The desired state of a pod; `sandboxes` and `made` hold what certainly exists."""

    name: str
    kind: Kind
    logs: Path
    volume: Path
    first_id: int = 0
    """Host id of its root in its user namespace; 0 for the host's user namespace."""
    sandboxes: set[str] = field(default_factory=set)
    """Sandboxes whose RunPodSandbox succeeded and whose removal was not requested."""
    made: dict[str, Made] = field(default_factory=dict)
    """Containers whose CreateContainer succeeded and whose removal was not requested."""
    ever: set[str] = field(default_factory=set)
    """All ids that the pod has ever had."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Number of the next attempt for each container name; never reused, not even in another sandbox."""
    error: str = ""
    """The last RPC error."""

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return f"uid-{self.name}"

    @property
    def has_network(self) -> bool:
        """Whether it is on the pod network."""
        return self.kind != "host"

    @property
    def has_own_users(self) -> bool:
        """Whether it has a user namespace."""
        return self.first_id > 0

    @property
    def _namespaces(self) -> pb.NamespaceOption:
        network = pb.POD if self.has_network else pb.NODE
        if not self.has_own_users:
            return pb.NamespaceOption(network=network)
        return own_users(self.first_id, network=network)

    @property
    def containers(self) -> tuple[str, ...]:
        """Names of its containers."""
        return ("job",) if self.kind == "job" else ("main", "side") if self.kind == "network" else ("main",)

    def config(self, attempt: int) -> pb.PodSandboxConfig:
        """Return the configuration of its sandbox."""
        more = in_context(namespace_options=self._namespaces)
        return pod_config(self.name, uid=self.uid, attempt=attempt, log_directory=str(self.logs), **more)

    def container(self, name: str, attempt: int) -> pb.ContainerConfig:
        """Return the configuration of one of its containers."""
        mounts = [pb.Mount(host_path=str(self.volume), container_path=_MOUNT)] if self.kind == "volume" else []
        return container_config(
            name,
            image=BUSYBOX,
            attempt=attempt,
            command=JOB if name == "job" else SERVICE,
            log_path=f"{name}/{attempt}.log",
            mounts=mounts,
            **secured(namespace_options=self._namespaces),
        )

    def runs_to_completion(self, name: str) -> bool:
        """Whether a container of this name runs to completion."""
        return name == "job"


def new_pod(plan: NewPod, *, logs: Path, volume: Path) -> ChaosPod:
    """Return the pod of a schedule; nothing of it exists yet."""
    return ChaosPod(plan.name, plan.kind, logs / plan.name, volume, plan.first_id)
