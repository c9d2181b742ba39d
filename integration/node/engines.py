"""The engines for the tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.node.isolation import Node, new_home
from integration.node.netns import Netns
from integration.node.packages import ON_DEMAND

ENGINES = ("20.10", "26", "28", "28-containerd", "29-containerd")
"""Names that end with -containerd use the containerd image store, which is the default of 29."""


def make_engine(
    node: Node,
    name: str,
    *,
    variant: str = "",
    settings: dict[str, object] | None = None,
    netns: Netns | None = None,
    environ: Mapping[str, str] | None = None,
) -> Engine:
    """Return an engine of ENGINES, not started; `variant` names a second engine with further `settings`.

    It runs in the network namespace `netns`, by default in the current one, with `environ` added to the environment.
    Raises NodeError if the engine was not fetched.
    """
    settings = settings or {}
    if name == "28-containerd":
        settings = {**settings, "features": {"containerd-snapshotter": True}}
    return Engine(
        name,
        binaries=_binaries(node, name),
        home=new_home(f"{name}{variant}"),
        cgroup_driver=node.cgroup_driver,
        cgroup_parent=node.cgroup_parent,
        settings=settings,
        shares_bridge=bool(variant),
        netns=netns,
        environ=environ,
    )


def available(node: Node) -> Sequence[str]:
    """Return the engines that were fetched."""
    return [name for name in ENGINES if name not in ON_DEMAND or name in node.on_demand]


def _binaries(node: Node, name: str) -> tuple[Path, ...]:
    """Return the directories of an engine's programs. The older engines have an older runc."""
    if name == "20.10":
        return node.stable.path
    runc = node.stable.path if node.newer_runc is None else node.newer_runc.path + node.stable.path
    if name in ON_DEMAND:
        if name not in node.on_demand:
            raise NodeError(f"no engine {name}: python -m integration.node engines fetches it")
        return node.on_demand[name].path + (node.stable.path if name == "26" else runc)
    if node.newer is None:
        raise NodeError(f"no newer engine: {node.newer_missing}")
    return node.newer.path + runc
