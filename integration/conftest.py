"""Fixtures of the integration tests: real engines, images, a registry and directories of a node.

The tests run inside a box (`integration.node.box`), started by `make integration`, or for a part of them
`.venv/bin/python -m integration.node run .venv/bin/pytest integration -k ...`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from integration.node import images as node_images
from integration.node.box import HOME, Node, this_node
from integration.node.engine import Engine
from integration.node.images import Image
from integration.node.registry import Registry
from integration.node.traces import Traces, traces

ENGINES = ("20.10", "28", "28-containerd")
_DEFAULT_ENGINES = ("20.10", "28")
_serial = count()


# --- options ----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the choice of engines."""
    parser.addoption(
        "--engine",
        action="append",
        choices=ENGINES,
        help="engine to test against, may be repeated (28-containerd: 28 on the containerd image store)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses an engine, however indirectly, once for each."""
    if "engine_name" in metafunc.fixturenames:
        names = metafunc.config.getoption("--engine") or _DEFAULT_ENGINES
        metafunc.parametrize("engine_name", names, scope="session")


# --- the node ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node() -> Node:
    """Return what was prepared before the box was closed."""
    found = this_node()
    if found is None:
        pytest.exit("the integration tests need a box around them: make integration", returncode=4)
    return found


@pytest.fixture(scope="session")
def engine(node: Node, engine_name: str) -> Iterator[Engine]:
    """Run an engine with data and socket of its own; tests leave it running and without containers."""
    made = _engine(node, engine_name)
    made.start()
    yield made
    made.close()


def _engine(node: Node, name: str) -> Engine:
    binaries = node.stable.path
    settings: dict[str, object] = {}
    if name != "20.10":
        if node.newer is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no newer engine: {node.newer_missing}")
        binaries = node.newer.path + binaries
    if name == "28-containerd":
        settings["features"] = {"containerd-snapshotter": True}
    home = HOME / f"{name}-{os.getpid()}"
    return Engine(name, binaries=binaries, home=home, cgroup_parent=node.cgroup_parent, settings=settings)


# --- images -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Images:
    """References of the images every test may use, and a maker of others."""

    pause: str
    busybox: str
    load: Callable[[str, dict[str, object]], str]
    """`load(reference, config)` adds a busybox with this image configuration and returns its id."""


@pytest.fixture(scope="session")
def pause_image(node: Node) -> Image:
    """Make the pause image, once for all engines."""
    return node_images.pause_image(node.busybox)


@pytest.fixture(scope="session")
def images(engine: Engine, node: Node, pause_image: Image) -> Images:
    """Load the pause and busybox images into the engine."""

    def load(reference: str, config: dict[str, object]) -> str:
        image = node_images.busybox_image(node.busybox, reference=reference, config=config)
        return node_images.load(engine.api, image)

    node_images.load(engine.api, pause_image)
    load(node_images.BUSYBOX, {})
    return Images(pause=node_images.PAUSE, busybox=node_images.BUSYBOX, load=load)


# --- registries -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def registry(node: Node) -> Iterator[Registry]:
    """Run a registry that asks for nothing."""
    yield from _registry(node, "registry", private=False)


@pytest.fixture(scope="session")
def private_registry(node: Node) -> Iterator[Registry]:
    """Run a registry that asks for USER and PASSWORD of `integration.node.registry`."""
    yield from _registry(node, "private-registry", private=True)


def _registry(node: Node, name: str, *, private: bool) -> Iterator[Registry]:
    program = node.tools.root / "usr/bin/docker-registry"
    made = Registry(program, home=HOME / f"{name}-{os.getpid()}", private=private)
    made.start()
    yield made
    made.stop()


# --- directories of one server ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeDirs:
    """Directories and paths of one server under test; `socket` does not exist yet."""

    cni_conf: Path
    cni_cache: Path
    cni_leases: Path
    cni_bin: Path
    netns: Path
    state: Path
    logs: Path
    socket: Path

    def traces(self, engine: Engine) -> Traces:
        """Return what there is now of everything a pod could leave behind."""
        return traces(engine.api, netns_dir=self.netns, lease_dir=self.cni_leases, state_dir=self.state)


@pytest.fixture
def node_dirs(node: Node, tmp_path: Path) -> NodeDirs:
    """Make fresh directories for one test, below its tmp_path.

    The socket alone is elsewhere: the path of a unix socket has at most 107 bytes. `cni_leases` is meant for
    host-local's `dataDir`.
    """
    for name in ("cni-conf", "cni-cache", "cni-leases", "netns", "state", "logs"):
        (tmp_path / name).mkdir()
    sockets = HOME / "sockets"
    sockets.mkdir(exist_ok=True)
    return NodeDirs(
        cni_conf=tmp_path / "cni-conf",
        cni_cache=tmp_path / "cni-cache",
        cni_leases=tmp_path / "cni-leases",
        cni_bin=node.tools.root / "usr/lib/cni",
        netns=tmp_path / "netns",
        state=tmp_path / "state",
        logs=tmp_path / "logs",
        socket=sockets / f"{os.getpid()}-{next(_serial)}.sock",
    )


# --- the server under test --------------------------------------------------------------------------------
