"""One node: an engine with live-restore, the server on it, and what can fail around them."""

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
"""How long a plugin may take, on this server."""
DOCKER_SECONDS = 15
"""How long a call to Docker may take."""
_GRACE_SECONDS = 10


@dataclass(slots=True)
class Target:
    """What pods run on. `life` counts servers, `losses` what may have made Docker lose output of its containers."""

    engine: Engine
    dirs: NodeDirs
    server: Server
    link: Link
    disk: Disk
    volume: HangingVolume
    clock: Clock
    moves: Path
    """Directory of checkpoints of pods."""
    has_criu: bool
    moved: int = 0
    """Pods that have gone on in another pod."""
    life: int = 0
    losses: int = 0
    restarted_by_hand: set[str] = field(default_factory=set)
    """Containers that may have run more than once, and so count from 0 again."""
    removed_by_hand: set[str] = field(default_factory=set)

    def start_server(self) -> None:
        """Start the server; its socket may still be there from one that was killed."""
        self.server.socket.unlink(missing_ok=True)
        self.life += 1
        self.server.start()

    @property
    def orders(self) -> set[str]:
        """The containers that have an order for the OCI runtime."""
        return {path.name for path in (self.dirs.state / ORDERS).glob("*")}

    @property
    def checkpoint_files(self) -> set[str]:
        """What there is of checkpoints that are being made or restored, or have failed.

        A complete checkpoint is none of them: a server that is killed before its answer leaves it.
        """
        being_made = (self.dirs.state / CHECKPOINTING, self.dirs.state / RESTORING)
        paths = [path for directory in being_made for path in directory.glob("*")]
        failed = (each for each in self.moves.glob("*") if not (each / MANIFEST).exists())
        paths += [path for directory in failed for path in directory.glob("*")]
        return {str(path) for path in paths}

    def snapshot(self) -> NodeSnapshot:
        """Return what there is now of everything a pod could leave behind."""
        return self.dirs.snapshot(self.engine)

    def server_pid(self) -> int | None:
        """Return the id of the server, None while there is none."""
        return _pid(self.server.daemon)

    def log_process(self) -> int | None:
        """Return the id of the log process, None while there is none."""
        server = self.server_pid()
        return None if server is None else log_process_of(server)

    def helper(self) -> int | None:
        """Return the id of the helper process for host paths, None while there is none."""
        server = self.server_pid()
        return None if server is None else helper_of(server)


def _pid(daemon: Daemon) -> int | None:
    try:
        return daemon.pid
    except NodeError:
        return None


@contextmanager
def new_target(node: Node, engine_name: str, home: Path, *, plugin_seconds: int = PLUGIN_SECONDS) -> Iterator[Target]:
    """Run such a node below `home` while the block runs. NodeError when it cannot be set up."""
    dirs = make_node_dirs(node, home)
    network = bridge(dirs.cni_leases, link=BRIDGE, subnets=(SUBNET,))
    (dirs.cni_conf / "10-chaos.conflist").write_text(conflist(network, name="chaos"))
    # Orders are in the state directory, as on a node: what happens to that happens to them.
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
