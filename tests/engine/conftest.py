"""An adapter on a scripted Engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.engine.client import DockerEngine
from tests.fakes.http_unix import ScriptedServer, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    with serving(tmp_path / "docker.sock") as server:
        yield server


@pytest.fixture
def adapter(server: ScriptedServer) -> Iterator[DockerEngine]:
    made = DockerEngine(f"unix://{server.path}", request_timeout=10)
    yield made
    made.close()
