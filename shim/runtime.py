"""The collaborators of the domain in frozen dataclasses; `Runtime` is the first argument of every verb."""

import time
from dataclasses import dataclass, field

from shim.base.deadline import ProgressClock
from shim.base.deferred_checks import DeferredChecks
from shim.base.loading_cache import LoadingCache
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
from shim.criu.support import CriuSupport
from shim.dockerd.facts import EngineFacts
from shim.dockerd.starting_tasks import TaskWatch
from shim.domain.ids import ImageId
from shim.domain.passwd import ImageAccounts
from shim.engine.detach_keys import new_server_mark
from shim.engine.interface import Engine
from shim.hostfs.client import HostFs
from shim.logs.interface import ContainerLogs
from shim.nri.plugins import Plugins as NriPlugins
from shim.nri.plugins import no_plugins
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.rpc_locks import Locks
from shim.stats_cache import StatsCache
from shim.streaming.backlog import Room
from shim.streaming.stalls import CheckIntervals
from shim.streaming.tokens import Tokens
from shim.view.node_view import NodeView
from shim.view.unseen import Unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Cni:
    """The collaborators for pod networks."""

    networks: NetworkSource
    """Selects the CNI configuration of new pods."""
    plugins: Plugins
    """Runs CNI plugins."""
    pod_cidr: PodCidr
    """Address ranges of the node's pods, from the kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePuller:
    """State that pulls share."""

    keyring: Keyring = field(default_factory=Keyring)
    """Credentials of the node, for pulls without credentials."""
    pulls: SingleFlight[ImageId] = field(default_factory=SingleFlight)
    """Pulls in progress: concurrent pulls of the same image share a pull by Docker."""
    progress: ProgressClock = field(default_factory=ProgressClock)
    """Time of the last progress of any pull: in Docker, a pull may wait for the layers of another."""
    manifests: LruCache[str, ImageId] = field(default_factory=lambda: LruCache(capacity=1000))
    """Pulled images by the digest of the manifest, which always identifies the same image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """Identifies this run of the server among earlier runs on the node."""

    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch: older files on disk come from earlier runs."""
    mark: str = field(default_factory=new_server_mark)
    """Marks the execs of this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The collaborators of all verbs."""

    config: Config
    engine: Engine
    facts: EngineFacts
    view: NodeView
    logs: ContainerLogs
    """Copies the output of containers to CRI log files."""
    checkpoints: CheckpointStore
    limits: LimitStore
    """Updated limits of containers that Docker has no field for."""
    user_namespaces: UserNamespaces
    """Checks whether pods can have user namespaces."""
    own_exec: OwnExec
    """Runs commands in containers without Docker, if possible."""
    criu: CriuSupport
    """Describes the criu of this node."""
    cni: Cni
    host_fs: HostFs
    """Accesses host paths, which may hang, in another process."""
    nri: NriPlugins = field(default_factory=no_plugins)
    """Plugins that see and change containers."""
    unseen: Unseen = field(default_factory=Unseen)
    """Sandboxes and containers that are hidden until plugins have been told of them."""
    stream_tokens: Tokens
    """Issues the URLs of streaming sessions."""
    backlogs: Room = field(default_factory=Room)
    """Memory for output that waits for slow clients."""
    attach_checks: CheckIntervals = field(default_factory=CheckIntervals)
    """Checks of attach clients that keep a container from writing."""
    locks: Locks = field(default_factory=Locks)
    puller: ImagePuller = field(default_factory=ImagePuller)
    accounts: LoadingCache[ImageId, ImageAccounts] = field(default_factory=lambda: LoadingCache(capacity=16 << 20))
    """Users and groups of images that containers use; the capacity is in bytes of the images' files."""
    deferred_checks: DeferredChecks = field(default_factory=DeferredChecks)
    """Repeats checks for late effects of a call that has ended."""
    tasks: TaskWatch = field(default_factory=TaskWatch)
    """Finds the first process of a container before Docker answers its start."""
    server: ServerRun = field(default_factory=ServerRun)
    taken_addresses: dict[str, str] = field(default_factory=dict)
    """Reasons why a server other than the CRI's lacks its configured address, by type of the condition in Status."""
    cgroups: CgroupLocator = field(default_factory=lambda: CgroupLocator(this_machines_mounts()))
    """Finds the cgroups of containers."""
    stats_cache: StatsCache = field(default_factory=StatsCache)
    """Earlier measurements of containers and pods."""
