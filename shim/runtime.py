"""The collaborators of the domain in frozen bundles; `Runtime` is the first argument of every verb. Data, no methods.

`Locks` alone has methods: which RPCs exclude each other is written there and nowhere else.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from shim.api.v1 import api_pb2 as pb
from shim.base.deadline import ProgressClock
from shim.base.deferred_checks import DeferredChecks
from shim.base.lease import Lease
from shim.base.loading_cache import LoadingCache
from shim.base.locks import KeyedLocks
from shim.base.lru_cache import LruCache
from shim.base.single_flight import SingleFlight
from shim.cgroup.locator import CgroupLocator
from shim.cgroup.places import this_machines_mounts
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.network_source import NetworkSource
from shim.cni.plugins import Plugins
from shim.config.model import Config
from shim.credentials.keyring import Keyring
from shim.domain.ids import ContainerId, ImageId, SandboxId
from shim.domain.passwd import ImageAccounts
from shim.engine.detach_keys import new_server_mark
from shim.engine.facts import EngineFacts
from shim.engine.interface import Engine
from shim.engine.tasks import TaskWatch
from shim.hostfs.client import HostFs
from shim.logs.interface import ContainerLogs
from shim.nri.plugins import Plugins as NriPlugins
from shim.nri.plugins import no_plugins
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.stats_cache import StatsCache
from shim.streaming.backlog import Room
from shim.streaming.patience import LooksByContainer
from shim.streaming.sessions import Sessions
from shim.view.node_view import NodeView
from shim.view.unseen import Unseen

PAUSE_EXIT_SECONDS = 10.0
"""How long the end of one pause container delays that of the next: as long as Docker waits for what it kills."""


STARTS_OF_A_POD = 4
"""Containers of one pod that Docker starts at a time. Kubelets start one after the other; more at a time are not sooner
done on two processors, and StopPodSandbox has to wait for each that Docker has begun."""


class Locks:
    """Which RPCs wait for each other. A wait ends with the caller's deadline: Cancelled or DeadlineExceeded."""

    def __init__(self) -> None:
        self._locks = KeyedLocks()
        self._pause_exits = Lease(PAUSE_EXIT_SECONDS)

    def rows(self) -> list[dict[str, object]]:
        """Return the locks that are held, for people, as `KeyedLocks.rows`."""
        return [*self._locks.rows(), *self._pause_exits.rows("pause exit")]

    def sandbox(self, name: str) -> AbstractContextManager[None]:
        """Hold the name of a pod sandbox: its run, stop, removal and update come one after the other."""
        return self._locks.hold(("sandbox", name))

    def container(self, name: str) -> AbstractContextManager[None]:
        """Hold the name of a container while it is created."""
        return self._locks.hold(("container", name))

    def limits(self, container_id: ContainerId) -> AbstractContextManager[None]:
        """Hold the limits of a container: what writes them (start, update, recovery) comes one after the other."""
        return self._locks.hold(("limits", container_id))

    def start(self, sandbox_id: SandboxId, metadata: pb.ContainerMetadata) -> AbstractContextManager[None]:
        """Hold a name and attempt of a pod while one of its containers is started. Taken after `limits`."""
        return self._locks.hold(("start", sandbox_id, metadata.name, metadata.attempt))

    def start_place(self, sandbox_id: SandboxId) -> AbstractContextManager[None]:
        """Hold one of the places for starts of a pod, while Docker is asked for it. Taken after `start` and `log`."""
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
        """Have one pause container end at a time, but wait for none that hangs. Taken after `sandbox`."""
        return self._pause_exits.hold(what="wait for the end of another pause container")

    def checkpoint(self) -> AbstractContextManager[None]:
        """Have one container of the node be checkpointed at a time: each takes the disk for itself."""
        return self._locks.hold("checkpoint")

    def cni_conf(self) -> AbstractContextManager[None]:
        """Hold the CNI configuration that the server writes itself."""
        return self._locks.hold("cni conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cni:
    """What gives pods their network."""

    networks: NetworkSource
    """Which CNI configuration new pods get."""
    plugins: Plugins
    """Runs CNI plugins."""
    pod_cidr: PodCidr
    """Address ranges of the node's pods, as the kubelet has sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePuller:
    """What pulls share."""

    keyring: Keyring = field(default_factory=Keyring)
    """Credentials of the node, for pulls that bring none."""
    pulls: SingleFlight[ImageId] = field(default_factory=SingleFlight)
    """Pulls under way, so that two of one image are one."""
    progress: ProgressClock = field(default_factory=ProgressClock)
    """When any of them has shown progress last: Docker lets one wait for the layers of another."""
    manifests: LruCache[str, ImageId] = field(default_factory=lambda: LruCache(capacity=1000))
    """What pulls have brought, by the digest of the manifest: it stands for the same image for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """What distinguishes this server from earlier ones on the node."""

    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch: what is older on disk is an earlier one's."""
    mark: str = field(default_factory=new_server_mark)
    """Of its execs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What run, stop, create, list and the rest work with."""

    config: Config
    engine: Engine
    facts: EngineFacts
    view: NodeView
    logs: ContainerLogs
    """Copies what containers write into the CRI's log files."""
    checkpoints: CheckpointStore
    limits: LimitStore
    """Limits of containers that were changed since and that Docker has no field for."""
    user_namespaces: UserNamespaces
    """Whether pods can have them."""
    own_exec: OwnExec
    """Runs commands in containers without Docker, where it can."""
    cni: Cni
    host_fs: HostFs
    """Uses host paths, which may hang, in another process."""
    nri: NriPlugins = field(default_factory=no_plugins)
    """Plugins that see and change containers."""
    unseen: Unseen = field(default_factory=Unseen)
    """What is being made, and plugins have to be told of first."""
    sessions: Sessions
    """Issues the URLs of streaming sessions."""
    backlogs: Room = field(default_factory=Room)
    """Memory for output that waits for clients which read slowly."""
    attach_looks: LooksByContainer = field(default_factory=LooksByContainer)
    """How often clients of attach are looked at that keep a container from writing."""
    locks: Locks = field(default_factory=Locks)
    puller: ImagePuller = field(default_factory=ImagePuller)
    accounts: LoadingCache[ImageId, ImageAccounts] = field(default_factory=lambda: LoadingCache(capacity=16 << 20))
    """Users and groups of the images that containers were made of; weighed in bytes of their files."""
    deferred_checks: DeferredChecks = field(default_factory=DeferredChecks)
    """Watches what may still happen after a call has ended."""
    tasks: TaskWatch = field(default_factory=TaskWatch)
    """Finds the first processes of containers before Docker answers their start."""
    server: ServerRun = field(default_factory=ServerRun)
    taken_addresses: dict[str, str] = field(default_factory=dict)
    """Why a server beside the CRI is not at the address of its setting, by the type of the condition in Status."""
    cgroups: CgroupLocator = field(default_factory=lambda: CgroupLocator(this_machines_mounts()))
    """Finds the control groups of containers."""
    stats_cache: StatsCache = field(default_factory=StatsCache)
    """What was measured of containers and pods before."""
