"""Fixtures: a logging driver of Docker, and the path of a CRI log."""

from pathlib import Path

import pytest

from shim.config.model import DockerLogDriver


@pytest.fixture(params=["json-file", "local"])
def driver(request: pytest.FixtureRequest) -> DockerLogDriver:
    """Each logging driver whose files are copied."""
    named: DockerLogDriver = request.param
    return named


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a CRI log whose directory does not exist yet."""
    return tmp_path / "pod" / "0.log"
