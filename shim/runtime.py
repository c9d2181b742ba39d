"""The collaborators of the domain in one frozen bundle, the first argument of every verb. Data, no methods."""

import time
from dataclasses import dataclass, field

from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.network import Plugins
from shim.cni.watch import ConfDirectory
from shim.concurrency.flights import Flights
from shim.concurrency.locks import KeyedLocks
from shim.concurrency.lookout import Lookout
from shim.config.model import Config
from shim.credentials.keyring import Keyring
from shim.deadline import Motion
from shim.engine.facts import EngineFacts
from shim.engine.interface import Engine
from shim.hostfs.client import HostFs
from shim.ids import ImageId
from shim.logs.interface import ContainerLogs
from shim.passwd import ImageAccounts
from shim.recent import Recent
from shim.samples import Samples
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
    pulls: Flights[ImageId] = field(default_factory=Flights)
    """Pulls under way, so that two of one image are one."""
    pull_motion: Motion = field(default_factory=Motion)
    """When any of them has shown progress last: Docker lets one wait for the layers of another."""
    manifests: Recent[str, ImageId] = field(default_factory=lambda: Recent(capacity=1000))
    """What pulls have brought, by the digest of the manifest: it stands for the same image for ever."""
    accounts: Recent[ImageId, ImageAccounts] = field(default_factory=lambda: Recent(capacity=16 << 20))
    """Users and groups of the images that containers were made of; weighed in bytes of their files."""
    account_looks: Flights[ImageAccounts] = field(default_factory=Flights)
    """Images whose users are being read."""
    lookout: Lookout = field(default_factory=Lookout)
    """Watches what may still happen after a call has ended."""
    started_at: float = field(default_factory=time.time)
    """When this server started, seconds since the epoch: what is older on disk is an earlier one's."""
    samples: Samples = field(default_factory=Samples)
    """What was measured of containers and pods before."""
