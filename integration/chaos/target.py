"""A node: an engine with live-restore, the server on it, and the parts that can fail."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from integration.chaos.clock import Clock
from integration.chaos.link import Link
from integration.conftest import NodeDirs, make_node_dirs
from integration.networks import bridge, conflist
from integration.node import images
from integration.node.commands import NodeError
from integration.node.criu import criu_in
from integration.node.daemon import Daemon
from integration.node.disk import Disk
from integration.node.engine import Engine, ordered_runtime, remove_link
from integration.node.engines import make_engine
from integration.node.fuse import HangingVolume
from integration.node.isolation import Node
from integration.node.leak_check import NodeSnapshot
from integration.node.mounts import unmount_all
from integration.node.processes import helper_of, log_process_of
from integration.server import Server
from shim.checkpoint.root import CHECKPOINTING, ORDERS, RESTORING
from shim.criu.layout import MANIFEST

BRIDGE = "chaos0"
SUBNET = "10.95.0.0/16"
PLUGIN_SECONDS = 10
"""Timeout of a CNI plugin on this server."""
DOCKER_SECONDS = 15
"""Timeout of a call to Docker."""
_GRACE_SECONDS = 10


@dataclass(slots=True)
class Target:
    """The node under test.

    `life` counts starts of the server, `losses` counts events that may have made Docker lose output of containers.
    """

    engine: Engine
    dirs: NodeDirs
    server: Server
    link: Link
    disk: Disk
    volume: HangingVolume
    clock: Clock
    moves: Path
    """Directory of pod checkpoints."""
    has_criu: bool
    moved: int = 0
    """Number of pods that were restored as another pod."""
    life: int = 0
    losses: int = 0
    restarted_by_hand: set[str] = field(default_factory=set)
    """Containers that may have run more than once, and so count from 0 again."""
    removed_by_hand: set[str] = field(default_factory=set)

    def start_server(self) -> None:
        """Start the server; a killed server may have left its socket."""
        self.server.socket.unlink(missing_ok=True)
        self.life += 1
        self.server.start()

    @property
    def orders(self) -> set[str]:
        """Containers that have an order for the OCI runtime."""
        return {path.name for path in (self.dirs.state / ORDERS).glob("*")}

    @property
    def checkpoint_files(self) -> set[str]:
        """Files of checkpoints and restores that are in progress or have failed.

        A complete checkpoint does not count: a server that is killed before its reply leaves it.
        """
        being_made = (self.dirs.state / CHECKPOINTING, self.dirs.state / RESTORING)
        paths = [path for directory in being_made for path in directory.glob("*")]
        failed = (each for each in self.moves.glob("*") if not (each / MANIFEST).exists())
        paths += [path for directory in failed for path in directory.glob("*")]
        return {str(path) for path in paths}

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot of everything a pod could leave behind."""
        return self.dirs.snapshot(self.engine)

    def server_pid(self) -> int | None:
        """Return the pid of the server, None while it is down."""
        return _pid(self.server.daemon)

    def log_process(self) -> int | None:
        """Return the pid of the log process, None while it is down."""
        server = self.server_pid()
        return None if server is None else log_process_of(server)

    def helper(self) -> int | None:
        """Return the pid of the helper process for host paths, None while it is down."""
        server = self.server_pid()
        return None if server is None else helper_of(server)


def _pid(daemon: Daemon) -> int | None:
    try:
        return daemon.pid
    except NodeError:
        return None


@contextmanager
def new_target(node: Node, engine_name: str, home: Path, *, plugin_seconds: int = PLUGIN_SECONDS) -> Iterator[Target]:
    """Run such a node below `home` while the block runs. Raises NodeError if it cannot be set up."""
    dirs = make_node_dirs(node, home)
    network = bridge(dirs.cni_leases, link=BRIDGE, subnets=(SUBNET,))
    (dirs.cni_conf / "10-chaos.conflist").write_text(conflist(network, name="chaos"))
    # Orders are in the state directory, as on a real node, so faults of its disk hit them too.
    runtimes = ordered_runtime(home, orders=dirs.state / ORDERS)
    settings: dict[str, object] = {"live-restore": True, "runtimes": runtimes}
    engine = make_engine(node, engine_name, variant="-chaos", settings=settings)
    with ExitStack() as stack:
        stack.callback(remove_link, BRIDGE)
        stack.callback(engine.close)
        engine.start()
        images.load(engine.api, images.pause_image(node.busybox))
        images.load(engine.api, images.busybox_image(node.busybox))
        disk = Disk(dirs.state)
        stack.enter_context(disk.mounted())
        stack.callback(unmount_all, dirs.netns)
        volume = HangingVolume(home / "volume")
        stack.callback(volume.close)
        link = stack.enter_context(Link(engine.socket, path=dirs.socket.with_suffix(".docker")))
        clock = Clock(home)
        criu = criu_in(home / "criu", node.criu) if node.criu is not None else None
        environ = clock.environ | ({"PATH": f"{criu.script.parent}:{os.environ['PATH']}"} if criu else {})
        server = _server(dirs, link, environ, log=home / "server.log", plugin_seconds=plugin_seconds)
        target = Target(
            engine, dirs, server, link, disk, volume, clock, moves=home / "moves", has_criu=criu is not None
        )
        stack.callback(server.stop)
        target.start_server()
        yield target


def _server(dirs: NodeDirs, link: Link, environ: dict[str, str], *, log: Path, plugin_seconds: int) -> Server:
    settings: dict[str, object] = {
        "docker-endpoint": f"unix://{link.path}",
        "root-directory": dirs.state,
        "netns-directory": dirs.netns,
        "cni-conf-dir": dirs.cni_conf,
        "cni-bin-dir": f"{dirs.cni_more_bin},{dirs.cni_bin}",
        "cni-cache-dir": dirs.cni_cache,
        "cni-plugin-timeout": plugin_seconds,
        "runtime-request-timeout": DOCKER_SECONDS,
        "shutdown-grace": _GRACE_SECONDS,
    }
    return Server(settings, socket=dirs.socket, log=log, environ=environ)
