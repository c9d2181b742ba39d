"""An engine with images and a pod network, and a server on it; all are removed after the block."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from integration.cri import Cri, connected
from integration.node import images
from integration.node.commands import NodeError, step
from integration.node.engine import Engine, remove_link
from integration.node.engines import make_engine
from integration.node.isolation import HOME, Node, this_node
from integration.node.leak_check import NodeSnapshot, snapshot
from integration.server import PROGRAM, Server
from shim.domain.ids import ImageId

CONFLIST = Path(__file__).parents[2] / "cni_conf_examples/10-bridge.conflist"
ENGINES = ("20.10", "28")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The base of a benchmark: an engine with the pause and busybox images, and a network for pods."""

    engine: Engine
    pause: ImageId
    busybox: ImageId
    conflist: dict[str, Any]
    """As the server reads it, with `leases` as host-local's directory."""
    cni_bin: Path
    leases: Path
    netns: Path
    state: Path
    logs: Path
    home: Path
    """Directory of all other files: the server's socket and log, and files of the floor."""

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot of everything that pods could leave behind."""
        return snapshot(self.engine.api, netns_dir=self.netns, lease_dir=self.leases, state_dir=self.state)


@contextmanager
def prepared(engine_name: str, *, settings: dict[str, object] | None = None) -> Iterator[Setup]:
    """Start the engine with additional `settings`, and load the images.

    Raises NodeError outside an isolated run, and if the engine is missing.
    """
    node = _node()
    home = HOME / "bench"
    for name in ("cni-conf", "cni-cache", "leases", "netns", "state", "logs", "floor"):
        (home / name).mkdir(parents=True)
    conflist = _conflist(home / "leases")
    (home / "cni-conf" / CONFLIST.name).write_bytes(msgspec.json.encode(conflist))
    with ExitStack() as stack:
        engine = make_engine(node, engine_name, settings=settings)
        for plugin in conflist["plugins"]:
            if "bridge" in plugin:
                stack.callback(remove_link, plugin["bridge"])
        stack.callback(engine.close)
        with step(f"starting Docker Engine {engine_name}"):
            engine.start()
            pause, busybox = _load(engine, node)
        yield Setup(
            engine=engine,
            pause=pause,
            busybox=busybox,
            conflist=conflist,
            cni_bin=node.tools.root / "usr/lib/cni",
            leases=home / "leases",
            netns=home / "netns",
            state=home / "state",
            logs=home / "logs",
            home=home,
        )


@contextmanager
def second_engine(
    setup: Setup, *, environ: Mapping[str, str] | None = None, settings: dict[str, object] | None = None
) -> Iterator[Engine]:
    """Run another engine of the same version and images, with further variables or settings of dockerd."""
    node = _node()
    engine = make_engine(node, setup.engine.name, variant="-beside", environ=environ, settings=settings)
    try:
        engine.start()
        _load(engine, node)
        yield engine
    finally:
        engine.close()


@contextmanager
def serving(
    setup: Setup, *, checkout: Path | None = None, program: Sequence[str] = (), **flags: object
) -> Iterator[tuple[Server, Cri]]:
    """Run the server on the engine, and connect to it. Remaining pods are removed at the end.

    `checkout` selects the server of another checkout of this repository, `program` replaces its command. `flags` are
    further settings, with `_` for `-`.
    """
    server = Server(
        {
            "docker-endpoint": setup.engine.url,
            "root-directory": setup.state,
            "netns-directory": setup.netns,
            "cni-conf-dir": setup.home / "cni-conf",
            "cni-bin-dir": setup.cni_bin,
            "cni-cache-dir": setup.home / "cni-cache",
            "pod-infra-container-image": images.PAUSE,  # another checkout may have another default
            **{name.replace("_", "-"): value for name, value in flags.items()},
        },
        socket=setup.home / "cri.sock",
        log=setup.home / "server.log",
        program=program or ((sys.executable, "-P", "-m", "shim") if checkout else PROGRAM),
        environ={"PYTHONPATH": str(checkout)} if checkout else None,
    )
    server.start()
    try:
        with connected(server.socket) as cri:
            try:
                yield server, cri
            finally:
                for sandbox in cri.sandboxes():
                    cri.remove(sandbox.id)
    except BaseException:
        print(server.daemon.log_tail(), flush=True)
        raise
    finally:
        server.stop()


def _node() -> Node:
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs only in isolation: make bench")
    return node


def _load(engine: Engine, node: Node) -> tuple[ImageId, ImageId]:
    both = images.pause_image(node.busybox), images.busybox_image(node.busybox)
    pause, busybox = (ImageId(images.load(engine.api, image)) for image in both)
    return pause, busybox


def _conflist(leases: Path) -> dict[str, Any]:
    conflist: dict[str, Any] = msgspec.json.decode(CONFLIST.read_bytes())
    for plugin in conflist["plugins"]:
        if plugin.get("ipam", {}).get("type") == "host-local":
            plugin["ipam"]["dataDir"] = str(leases)
    return conflist
