"""docs/compatibility.md agrees with the recorded results."""

import re
from pathlib import Path

import pytest

from integration.conformance.page import PAGE, page
from integration.conformance.results import KEPT, file_name, files, kept, read
from integration.pythons import outcomes

_ROOT = Path(__file__).parents[1]
_CLAIMS = ("README.md", "docs/features.md", "docs/install.md")


def test_the_page_is_made_from_the_results() -> None:
    assert PAGE.read_text() == page(kept(), outcomes.kept()), "run: python -m integration.conformance.page"


def test_each_file_has_the_name_of_its_run() -> None:
    for path in files():
        (run,) = read(path)
        assert path.name == file_name(run)
    for path in set(KEPT.iterdir()) - set(files()):
        (outcome,) = outcomes.read(path)
        assert path.name == outcomes.file_name(outcome)


@pytest.mark.parametrize("name", _CLAIMS)
def test_no_page_claims_a_kubelet_that_was_not_run(name: str) -> None:
    run = {found.version.rpartition(".")[0] for found in kept() if found.suite == "kubelet"}
    text = (_ROOT / name).read_text()
    lists = re.findall(r"[Kk]ubelets? (?:from )?(v?1\.\d\d\b(?:(?:,| and)\s1\.\d\d\b)*)", text)
    claimed = {version for listed in lists for version in re.findall(r"1\.\d\d", listed)}
    for first, last in re.findall(r"[Kk]ubelets? (?:from )?1\.(\d\d) to 1\.(\d\d)", text):
        claimed |= {f"1.{minor}" for minor in range(int(first), int(last) + 1)}
    assert claimed <= run, f"{name} names kubelets {claimed - run}, docs/compatibility.md does not"


def test_the_readme_claims_no_engine_and_no_python_that_was_not_run() -> None:
    readme = (_ROOT / "README.md").read_text()
    engines = re.findall(r"(?:Docker|Engines?) (\d+(?:\.\d+)?)(?: and (\d+(?:\.\d+)?))?", readme)
    pythons = set(re.findall(r"Python (3\.\d+)", readme))

    assert {name for found in engines for name in found if name} <= {run.engine.partition("-")[0] for run in kept()}
    assert pythons <= {run.machine.python for run in kept()}
    assert engines
    assert pythons
    assert not re.search(r"Ubuntu \d|Debian 1[013-9]", readme), "only docs/releasing.md has fresh machines"
