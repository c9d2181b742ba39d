"""The target of upstream's programs: a private engine, and a server on it with a pod network."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from integration.conftest import Served, make_node_dirs, serving
from integration.networks import BRIDGE, bridge, conflist
from integration.node import images
from integration.node.criu import criu_in
from integration.node.engine import own_link
from integration.node.engines import make_engine
from integration.node.isolation import Node, new_home
from integration.server import PROGRAM

CLUSTER_SUBNET = "10.89.0.0/16"


@contextmanager
def target(node: Node, engine_name: str, *, settings: Mapping[str, object] | None = None) -> Iterator[Served]:
    """Run an engine with the images pause and busybox, and a server on it, whose pods have addresses and host ports.

    `settings` are further settings of the engine. The engine keeps running when the server stops or is killed.
    """
    engine = make_engine(node, engine_name, settings={"live-restore": True, **(settings or {})})
    engine.start()
    try:
        images.load(engine.api, images.pause_image(node.busybox))
        images.load(engine.api, images.busybox_image(node.busybox))
        dirs = make_node_dirs(node, new_home(f"conformance-{engine_name}"))
        network = bridge(dirs.cni_leases, subnets=[CLUSTER_SUBNET], ipMasq=True, hairpinMode=True)
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        (dirs.cni_conf / "10-pods.conflist").write_text(conflist(network, portmap))
        with own_link(BRIDGE), serving(engine, dirs, _program(node)) as served:
            yield served
    finally:
        engine.close()


def _program(node: Node) -> Sequence[str]:
    """Return the command of a server that finds criu, if there is one."""
    if node.criu is None:
        return PROGRAM
    criu = criu_in(new_home("criu"), node.criu)
    return ("env", f"PATH={criu.script.parent}{os.pathsep}{os.environ['PATH']}", *PROGRAM)
