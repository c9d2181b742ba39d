"""The collaborators of the domain in one frozen bundle, the first argument of every verb. Data, no methods."""

from dataclasses import dataclass

from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.network import Plugins
from shim.cni.watch import ConfDirectory
from shim.config.model import Config
from shim.engine.facts import EngineFacts
from shim.engine.interface import Engine
from shim.locks import KeyedLocks
from shim.view.node import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What run, stop, create, list and the rest work with."""

    config: Config
    engine: Engine
    facts: EngineFacts
    view: NodeView
    checkpoints: CheckpointStore
    pod_cidr: PodCidr
    networks: ConfDirectory
    """Which CNI configuration new pods get."""
    plugins: Plugins
    """Runs CNI plugins."""
    locks: KeyedLocks
