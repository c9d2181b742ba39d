"""The engines there are to test against."""

from collections.abc import Mapping

from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.node.isolation import Node, new_home
from integration.node.netns import Netns

ENGINES = ("20.10", "28", "28-containerd")
"""The last one is 28 on the containerd image store."""


def make_engine(
    node: Node,
    name: str,
    *,
    variant: str = "",
    settings: dict[str, object] | None = None,
    netns: Netns | None = None,
    environ: Mapping[str, str] | None = None,
) -> Engine:
    """Make an engine of one of ENGINES, not started; `variant` names one beside it with `settings` of its own.

    It runs in the network namespace `netns`, or else in ours, with `environ` added to our environment. NodeError when
    it is not there.
    """
    binaries = node.stable.path
    settings = settings or {}
    if name != "20.10":
        if node.newer is None:
            raise NodeError(f"no newer engine: {node.newer_missing}")
        binaries = node.newer.path + binaries
    if name == "28-containerd":
        settings = {**settings, "features": {"containerd-snapshotter": True}}
    return Engine(
        name,
        binaries=binaries,
        home=new_home(f"{name}{variant}"),
        cgroup_driver=node.cgroup_driver,
        cgroup_parent=node.cgroup_parent,
        settings=settings,
        shares_bridge=bool(variant),
        netns=netns,
        environ=environ,
    )
