"""Adapters, and their parts, on a scripted Engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.base.deadline import LONGEST
from shim.domain.errors import DeadlineExceeded
from shim.engine.client import DockerEngine
from shim.engine.pool import Pool
from shim.engine.session import DockerSession
from tests.fakes.http_unix import ScriptedServer, serving
from tests.waits import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedServer]:
    with serving(tmp_path / "docker.sock") as server:
        yield server


@pytest.fixture
def adapter(server: ScriptedServer) -> Iterator[DockerEngine]:
    # A timeout that no test reaches: it would look like the expected end of a call.
    made = DockerEngine(f"unix://{server.path}", request_timeout=LONGEST)
    yield made
    made.close()


@pytest.fixture
def impatient(server: ScriptedServer) -> Iterator[DockerEngine]:
    """A connected adapter that waits 0.05 s for an answer: only the call of the test has to be in time."""
    made = DockerEngine(f"unix://{server.path}", request_timeout=0.05)
    wait_until(lambda: connected(made))
    yield made
    made.close()


def connected(engine: DockerEngine) -> bool:
    """Connect; the connection is kept for the next call."""
    try:
        return bool(engine.api_version)
    except DeadlineExceeded:
        return False


@pytest.fixture
def session(server: ScriptedServer) -> Iterator[DockerSession]:
    pool = Pool(str(server.path))
    yield DockerSession(pool, timeout=LONGEST)
    pool.close()
