from pathlib import Path

import pytest

from tests.cni.fake_plugins import FakePlugins


@pytest.fixture
def fakes(tmp_path: Path) -> FakePlugins:
    return FakePlugins(tmp_path / "plugins")
