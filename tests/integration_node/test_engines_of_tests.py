from pathlib import Path, PurePath

import pytest

from integration import side_by_side
from integration.engines_of_tests import ENGINES_OF, engines_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "engines"),
    [
        ("test_node.py", ("20.10", "28")),
        ("operating/test_alerts.py", ("20.10", "28")),
        ("pods/test_stop.py", ("20.10", "28-containerd")),
        ("image/test_images.py", ("20.10", "28", "28-containerd")),
        ("image/test_credentials.py", ("28-containerd",)),
        ("chaos/test_chaos.py", ("28-containerd",)),
    ],
)
def test_a_file_runs_on_the_engines_of_its_entry_or_its_folders(path: str, engines: tuple[str, ...]) -> None:
    assert set(engines_of(PurePath(path))) == set(engines)


def test_each_entry_is_of_an_existing_file() -> None:
    assert [place for place in ENGINES_OF if not (ROOT / "integration" / place).exists()] == []
    assert [place for place in side_by_side.SECONDS if not (ROOT / place).exists()] == []
