"""What tests of logs begin with: a logging driver of Docker, and where a CRI log is to be."""

from pathlib import Path

import pytest

from shim.config.model import DockerLogDriver


@pytest.fixture(params=["json-file", "local"])
def driver(request: pytest.FixtureRequest) -> DockerLogDriver:
    """Each logging driver of Docker whose files are copied."""
    named: DockerLogDriver = request.param
    return named


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the CRI log of a container is to be; its directory is not there yet."""
    return tmp_path / "pod" / "0.log"
