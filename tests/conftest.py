"""A node in memory: the domain's real code over the fake Engine, real state files and real CNI directories."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from shim.base import heartbeat
from shim.base.deferred_checks import DeferredChecks
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.plugins import Plugins
from shim.cni.watch import ConfDirectory
from shim.config.model import Config
from shim.criu.support import CriuSupport
from shim.dockerd.facts import EngineFacts
from shim.hostfs.client import HostFs
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.runtime import Cni, Runtime
from shim.streaming.tokens import Tokens
from shim.view.node_view import NodeView
from shim.view.watch import Watcher
from tests.clock import Clock
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.waits import SECONDS

BUSYBOX = "docker.io/library/busybox:latest"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the number of rounds in tests of races."""
    parser.addoption("--event-rounds", type=int, default=100, help="pods whose events are checked to come in order")


@pytest.fixture
def event_rounds(request: pytest.FixtureRequest) -> int:
    """Return the number of pods that a test of events starts and stops."""
    rounds: int = request.config.getoption("--event-rounds")
    return rounds


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, which would visit all 10,000 each time."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> Iterator[None]:
    """Keep log lines of background threads between tests out of pytest's report."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - os.devnull is a string
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))
        yield
        structlog.reset_defaults()


@pytest.fixture
def engine() -> FakeEngine:
    """Return an Engine with the pause image and a busybox."""
    engine = FakeEngine()
    engine.add_image(Config().pod_infra_container_image)
    engine.add_image(BUSYBOX)
    return engine


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return settings with all paths below tmp_path."""
    return Config(
        root_directory=tmp_path / "state",
        netns_directory=tmp_path / "netns",
        cni_conf_dir=tmp_path / "cni-conf",
        cni_bin_dir=(tmp_path / "cni-bin",),
        cni_cache_dir=tmp_path / "cni-cache",
        cni_plugin_timeout=10.0,
    )


@pytest.fixture
def clock() -> Clock:
    """Return a separate clock for the test."""
    return Clock()


@pytest.fixture
def logs() -> FakeLogs:
    """Return logging that writes everything at once."""
    return FakeLogs()


@pytest.fixture(scope="session")
def host_fs() -> Iterator[HostFs]:
    """Run a helper process that all tests share, because it keeps no state."""
    host_fs = HostFs()
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(heartbeat, "ANSWER_SECONDS", SECONDS)
        host_fs.start()
    # On a busy machine the start alone takes longer than the timeout of a path.
    host_fs.call_until_answered(os.getpid, path="", what="start")
    yield host_fs
    host_fs.stop()


@pytest.fixture
def rt(engine: FakeEngine, logs: FakeLogs, config: Config, host_fs: HostFs) -> Iterator[Runtime]:
    """Return a runtime with a view that follows the engine."""
    config.root_directory.mkdir()
    view = NodeView(engine, logs=logs)
    logs.on_drained = view.publish_exit
    watcher = Watcher(engine, view, ended=lambda _: False)  # fake containers have no processes
    networks = ConfDirectory(config.cni_conf_dir, bin_dirs=config.cni_bin_dir)
    networks.start()
    watcher.start()
    deferred_checks = DeferredChecks()
    facts = EngineFacts(engine, restrict_oom_score_adj="false")
    own_exec = OwnExec(is_wanted=False)
    yield Runtime(
        config=config,
        engine=engine,
        facts=facts,
        user_namespaces=UserNamespaces(facts, files=config.root_directory),
        own_exec=own_exec,
        criu=CriuSupport(own_exec, work=config.root_directory / "checkpointing", environ={"PATH": "/nonexistent"}),
        view=view,
        logs=logs,
        checkpoints=CheckpointStore(config.root_directory / "sandboxes"),
        limits=LimitStore(config.root_directory / "limits"),
        cni=Cni(
            networks=networks,
            plugins=Plugins(
                bin_dirs=config.cni_bin_dir, cache_dir=config.cni_cache_dir, timeout=config.cni_plugin_timeout
            ),
            pod_cidr=PodCidr(config.root_directory / "pod-cidr", default=""),
        ),
        host_fs=host_fs,
        stream_tokens=Tokens(base_url="http://127.0.0.1:1"),
        deferred_checks=deferred_checks,
    )
    deferred_checks.stop()
    watcher.stop()
    networks.stop()
