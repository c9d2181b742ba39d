"""Fixtures of the integration tests: real engines, images, a registry and directories of a node.

The tests run in isolation (`integration.node.isolation`): `make integration` runs all, and `.venv/bin/python -m
integration.node run .venv/bin/pytest integration -k ...` runs some.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path

import grpc
import pytest

from integration.cri import HOST_NETWORK, Cri, connected, pod_config
from integration.engines_of_tests import engines_of
from integration.networks import BRIDGE, bridge, conflist
from integration.node import engines
from integration.node import images as node_images
from integration.node.commands import NodeError
from integration.node.daemon import Daemon
from integration.node.engine import Engine, own_link
from integration.node.engines import ENGINES
from integration.node.images import Image
from integration.node.isolation import HOME, Node, new_home, this_node
from integration.node.leak_check import NodeSnapshot, snapshot
from integration.node.mounts import unmount_all
from integration.node.netns import Netns
from integration.node.registry import Registry
from integration.server import PROGRAM, Server
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

_serial = count()


# --- options ----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the integration tests."""
    parser.addoption(
        "--engine",
        action="append",
        choices=ENGINES,
        help="engine to test against, may be repeated (28-containerd is 28 with the containerd image store; "
        "default: the engines listed for each test)",
    )
    parser.addoption("--all-engines", action="store_true", help="run every test on each engine")
    parser.addoption(
        "--all-packages", action="store_true", help="also build all packages, and install them on fresh machines"
    )
    parser.addoption("--event-pods", type=int, default=10, help="number of pods in the test of event order")
    parser.addoption("--images", type=int, default=50, help="number of images in tests that need many")
    parser.addoption("--exit-storms", action="store_true", help="run all storms of container exits, not a few")
    parser.addoption(
        "--results",
        type=Path,
        metavar="DIRECTORY",
        help="where to write results for docs/compatibility.md: results of the scenarios in a kind node, and with "
        "-p integration.outcomes results of the tests",
    )
    parser.addoption("--note", default="", help="remark about the programs, for --results")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses an engine, directly or indirectly, once for each engine."""
    if "engine_name" in metafunc.fixturenames:
        metafunc.parametrize("engine_name", _engines(metafunc.definition.path, metafunc.config), scope="session")


def _engines(path: Path, config: pytest.Config) -> Sequence[str]:
    if config.getoption("--all-engines"):
        return ENGINES
    return tuple(config.getoption("--engine") or engines_of(path.relative_to(Path(__file__).parent)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of the servers and engines that a failed test used to its report."""
    report = yield
    if report.failed:
        used = {daemon.log: daemon for made in getattr(item, "funcargs", {}).values() for daemon in _daemons(made)}
        report.sections += [(path.name, daemon.log_tail()) for path, daemon in used.items() if path.exists()]
    return report


def _daemons(made: object) -> list[Daemon]:
    """Return the daemons of a fixture's value: an engine, a server, or an object with a `served` attribute."""
    match made:
        case Engine():
            return [made.daemon]
        case Served():
            return [made.server.daemon, made.engine.daemon]
        case _:
            served = getattr(made, "served", None)
            return _daemons(served) if isinstance(served, Served) else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why tests were repeated: their own lines only name them."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"RERUN {report.nodeid} ({report.when})", sep="-")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, sep=".")
            terminalreporter.write_line(text)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain unequal snapshots by their new and missing entries only."""
    if op != "==" or not isinstance(left, NodeSnapshot) or not isinstance(right, NodeSnapshot):
        return None
    lines = ["the node is as before"]
    for field in fields(NodeSnapshot):
        there, then = getattr(left, field.name), getattr(right, field.name)
        if there != then:
            lines.append(f"{field.name}: new {sorted(there - then)}, gone {sorted(then - there)}")
    return lines


# --- the node ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node() -> Node:
    """Return the node that was prepared before the isolated run began."""
    found = this_node()
    if found is None:
        pytest.exit("the integration tests run in isolation only: make integration", returncode=4)
    return found


@pytest.fixture(scope="session")
def engine(node: Node, engine_name: str) -> Iterator[Engine]:
    """Run an engine with separate data and socket; tests leave it running and without containers."""
    made = make_engine(node, engine_name)
    made.start()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _engine_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the engine again if a failed test has left it stopped.

    This runs after the test, because fixtures of a module or a session are set up before the fixtures of the next test.
    """
    names = request.fixturenames
    engine = request.getfixturevalue("engine") if "engine" in names else None
    served = request.getfixturevalue("served") if "served" in names else None
    yield
    if isinstance(engine, Engine) and not engine.daemon.running:  # chaos tests use `engine` for its name
        engine.start()
        if isinstance(served, Served) and served.server.daemon.running:
            served.wait_answers()


def make_engine(node: Node, name: str, *, variant: str = "", settings: dict[str, object] | None = None) -> Engine:
    """Return an engine as `engines.make_engine` does; a missing engine skips the test, or fails it in CI."""
    try:
        return engines.make_engine(node, name, variant=variant, settings=settings)
    except NodeError as cause:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(cause))


# --- images -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Images:
    """References of the images every test may use, and a function that adds more."""

    pause: str
    busybox: str
    load: Callable[[str, dict[str, object]], str]
    """`load(reference, config)` adds a busybox image with this image configuration and returns its id."""


@pytest.fixture(scope="session")
def pause_image(node: Node) -> Image:
    """Build the pause image, once for all engines."""
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
    """Run a registry without authentication."""
    yield from _registry(node, "registry", private=False)


@pytest.fixture(scope="session")
def private_registry(node: Node) -> Iterator[Registry]:
    """Run a registry that requires USER and PASSWORD of `integration.node.registry`."""
    yield from _registry(node, "private-registry", private=True)


@pytest.fixture(scope="session")
def tls_registry(node: Node) -> Iterator[Registry]:
    """Run a registry that speaks only TLS, and requires USER and PASSWORD."""
    yield from _registry(node, "tls-registry", private=True, tls=True)


def _registry(node: Node, name: str, *, private: bool, tls: bool = False) -> Iterator[Registry]:
    program = node.tools.root / "usr/bin/docker-registry"
    made = Registry(program, home=new_home(name), private=private, tls=tls)
    made.start()
    try:
        yield made
    finally:
        made.stop()


# --- directories of one server ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeDirs:
    """Directories and paths of a server under test; `socket` does not exist yet."""

    cni_conf: Path
    cni_cache: Path
    cni_leases: Path
    cni_bin: Path
    """Debian's plugins."""
    cni_more_bin: Path
    """An empty directory that is searched before `cni_bin`."""
    netns: Path
    state: Path
    logs: Path
    socket: Path

    def snapshot(self, engine: Engine) -> NodeSnapshot:
        """Return a snapshot of everything a pod could leave behind."""
        return snapshot(engine.api, netns_dir=self.netns, lease_dir=self.cni_leases, state_dir=self.state)


def make_node_dirs(node: Node, home: Path) -> NodeDirs:
    """Create empty directories below `home`.

    Only the socket is elsewhere, because the path of a unix socket has at most 107 bytes. `cni_leases` is for
    host-local's `dataDir`.
    """
    for name in ("cni-conf", "cni-cache", "cni-leases", "cni-bin", "netns", "state", "logs"):
        (home / name).mkdir(parents=True)
    sockets = HOME / "sockets"
    sockets.mkdir(exist_ok=True)
    return NodeDirs(
        cni_conf=home / "cni-conf",
        cni_cache=home / "cni-cache",
        cni_leases=home / "cni-leases",
        cni_bin=node.tools.root / "usr/lib/cni",
        cni_more_bin=home / "cni-bin",
        netns=home / "netns",
        state=home / "state",
        logs=home / "logs",
        socket=sockets / f"{os.getpid()}-{next(_serial)}.sock",
    )


@pytest.fixture
def node_dirs(node: Node, tmp_path: Path) -> NodeDirs:
    """Create empty directories for a test, below its tmp_path."""
    return make_node_dirs(node, tmp_path)


# --- the server under test --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """A server under test, a client of it, its engine and its directories."""

    server: Server
    cri: Cri
    engine: Engine
    dirs: NodeDirs

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot of everything a pod could leave behind."""
        return self.dirs.snapshot(self.engine)

    def restart(self) -> None:
        """Start the stopped or killed server again, and wait until the client is connected."""
        self.server.start()
        self.wait_answers()

    def revive(self) -> None:
        """Start the engine and the server again if a failed test has left them killed, and wait for both."""
        if not self.engine.daemon.running:
            self.engine.start()
        if not self.server.daemon.running:
            self.server.socket.unlink(missing_ok=True)  # a start waits until the socket appears
            self.server.start()
        self.wait_answers()

    def wait_answers(self) -> None:
        """Wait until the server answers the client, and Docker the server."""
        wait_until(self._answers)

    def has_network(self) -> bool:
        """Whether the server reports NetworkReady, for which kubelets also wait."""
        conditions = self.cri.runtime.Status(pb.StatusRequest()).status.conditions
        return any(condition.status for condition in conditions if condition.type == "NetworkReady")

    def _answers(self) -> bool:
        try:
            self.cri.containers()
        except grpc.RpcError:
            return False
        return True

    def clear(self) -> None:
        """Remove all listed containers and sandboxes, in the kubelet's order."""
        for container in self.cri.containers():
            self.cri.remove_container(container.id)
        self.cri.remove_all()


@contextmanager
def serving(
    engine: Engine,
    dirs: NodeDirs,
    program: Sequence[str] | None = None,
    netns: Netns | None = None,
    /,
    **settings: object,
) -> Iterator[Served]:
    """Run a server on an engine that has the test images; first run two pods, so that shared objects exist.

    `settings` are further fields of `shim.config.model.Config`. Remaining pods are removed at the end. `program` is the
    command of the server, `netns` its network namespace. Without both the server is forked (`integration.forked`).
    """
    values: dict[str, object] = {
        "docker_endpoint": engine.url,
        "root_directory": dirs.state,
        "netns_directory": dirs.netns,
        "cni_conf_dir": dirs.cni_conf,
        "cni_bin_dir": f"{dirs.cni_more_bin},{dirs.cni_bin}",
        "cni_cache_dir": dirs.cni_cache,
        **settings,
    }
    flags = {name.replace("_", "-"): value for name, value in values.items()}
    server = Server(
        flags,
        socket=dirs.socket,
        log=dirs.state.with_name("server.log"),
        program=program or PROGRAM,
        netns=netns,
        forked=program is None and netns is None,
    )
    server.start()
    try:
        with connected(dirs.socket) as cri:
            served = Served(server, cri, engine, dirs)
            wait_until(served.has_network)
            try:
                cri.run(pod_config("first"))
                cri.run(pod_config("first-of-host", linux=HOST_NETWORK))
                served.clear()
                yield served
            finally:
                served.revive()
                served.clear()
    finally:
        server.stop()
        unmount_all(dirs.netns)


@pytest.fixture(scope="session")
def served(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run one server for all tests that leave it unchanged; leftovers fail the session at the end."""
    dirs = make_node_dirs(node, new_home("served"))
    network = bridge(dirs.cni_leases), {"type": "portmap", "capabilities": {"portMappings": True}}
    (dirs.cni_conf / "10-pods.conflist").write_text(conflist(*network))
    with own_link(BRIDGE), serving(engine, dirs) as made:
        before = made.snapshot()
        yield made
        made.revive()
        made.clear()
        assert made.snapshot() == before


@pytest.fixture
def cri(served: Served) -> Cri:
    """Return a client of the shared server."""
    return served.cri
