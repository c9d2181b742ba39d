import pytest

from shim.config.model import DockerLogDriver


@pytest.fixture(params=["json-file", "local"])
def driver(request: pytest.FixtureRequest) -> DockerLogDriver:
    """Each logging driver of Docker whose files are copied."""
    named: DockerLogDriver = request.param
    return named
