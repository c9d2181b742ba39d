"""The collaborators of the domain in one frozen bundle, the first argument of every verb. Data, no methods."""

import time
from dataclasses import dataclass, field

from shim.base.deadline import ProgressClock
from shim.base.deferred_checks import DeferredChecks
from shim.base.locks import KeyedLocks
from shim.base.lru_cache import LruCache
from shim.base.single_flight import SingleFlight
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.network import Plugins
from shim.cni.watch import ConfDirectory
from shim.config.model import Config
from shim.credentials.keyring import Keyring
from shim.domain.ids import ImageId
from shim.domain.passwd import ImageAccounts
from shim.engine.facts import EngineFacts
from shim.engine.interface import Engine
from shim.hostfs.client import HostFs
from shim.logs.interface import ContainerLogs
from shim.stats_cache import StatsCache
from shim.streaming.sessions import Sessions
from shim.view.node import NodeView


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
    pod_cidr: PodCidr
    networks: ConfDirectory
    """Which CNI configuration new pods get."""
    plugins: Plugins
    """Runs CNI plugins."""
    host_fs: HostFs
    """Has host paths, which may hang, used by another process."""
    locks: KeyedLocks
    sessions: Sessions
    """Gives out the URLs of streaming sessions."""
    keyring: Keyring = field(default_factory=Keyring)
    """Credentials of the node, for pulls that bring none."""
    pulls: SingleFlight[ImageId] = field(default_factory=SingleFlight)
    """Pulls under way, so that two of one image are one."""
    pull_motion: ProgressClock = field(default_factory=ProgressClock)
    """When any of them has shown progress last: Docker lets one wait for the layers of another."""
    manifests: LruCache[str, ImageId] = field(default_factory=lambda: LruCache(capacity=1000))
    """What pulls have brought, by the digest of the manifest: it stands for the same image for ever."""
    accounts: LruCache[ImageId, ImageAccounts] = field(default_factory=lambda: LruCache(capacity=16 << 20))
    """Users and groups of the images that containers were made of; weighed in bytes of their files."""
    account_looks: SingleFlight[ImageAccounts] = field(default_factory=SingleFlight)
    """Images whose users are being read."""
    deferred_checks: DeferredChecks = field(default_factory=DeferredChecks)
    """Watches what may still happen after a call has ended."""
    started_at: float = field(default_factory=time.time)
    """When this server started, seconds since the epoch: what is older on disk is an earlier one's."""
    stats_cache: StatsCache = field(default_factory=StatsCache)
    """What was measured of containers and pods before."""
