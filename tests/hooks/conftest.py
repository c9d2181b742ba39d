"""An in-memory node with a socket for NRI plugins."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.daemon.nri import serving_plugins
from shim.engine.answers import Runtime as OciRuntime
from shim.nri.plugin import ALL_EVENTS, VALIDATE
from shim.nri.plugins import Plugins, Timeouts
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.nri.plugin import TestPlugin, connected
from tests.waits import SECONDS, wait_until


@pytest.fixture
def orders(tmp_path: Path, engine: FakeEngine) -> Path:
    """The order directory of the OCI runtime, which the fake Docker has."""
    directory = tmp_path / "oci"
    known = OciRuntime(path="/oci-runtime", runtime_args=["--orders", str(directory)])
    info = engine.engine_info
    engine.engine_info = msgspec.structs.replace(info, runtimes={**(info.runtimes or {}), "pydockershim": known})
    return directory


@pytest.fixture
def node(rt: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime context with NRI as the server runs it."""
    config = replace_config(rt, nri_socket_path=tmp_path / "nri.sock", nri_plugin_path=tmp_path / "none")
    with served(replace(rt, config=config)) as made:
        yield made


def replace_config(rt: Runtime, **changes: Any) -> Any:
    return msgspec.structs.replace(rt.config, **changes)


@contextmanager
def served(rt: Runtime) -> Iterator[Runtime]:
    made = replace(rt, nri=Plugins(Timeouts(registration=SECONDS, request=SECONDS)))
    with serving_plugins(made):
        yield made


Connect = Callable[..., TestPlugin]


@pytest.fixture
def connect(node: Runtime) -> Iterator[Connect]:
    """Connect a plugin: `connect("10", "name", events=..., only=...)`."""
    with ExitStack() as stack:
        yield partial(_connect, node, stack)


def _connect(node: Runtime, stack: ExitStack, index: str = "10", name: str = "test", **fields: Any) -> TestPlugin:
    fields.setdefault("events", ALL_EVENTS & ~VALIDATE.mask)
    before = len(node.nri.rows())
    plugin = stack.enter_context(connected(node.config.nri_socket_path, index, name, **fields))
    wait_until(lambda: len(node.nri.rows()) > before)
    return plugin
