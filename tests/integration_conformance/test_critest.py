"""The command line and the environment of critest."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.conformance.critest import Critest
from integration.conformance.results import Case

_PROGRAM = """\
#!/bin/sh
# critest -help, or a run that tells its arguments and loads a profile.
[ "$1" = -help ] && { echo -nri-socket; exit; }
for each; do
    case $each in -ginkgo.json-report=*) report=${each#*=} ;; esac
done
printf '%s\\n' "$@" >arguments
sudo printf '[{"SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "runs", "State": "passed"}]}]' >$report
"""


@pytest.fixture
def critest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Critest:
    program = tmp_path / "critest"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    for name in ("sh", "printf"):  # no sudo
        (tmp_path / "path").mkdir(exist_ok=True)
        (tmp_path / "path" / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return Critest(program=program, socket=Path("/s"), nri=Path("/n"), skipped={"a digest": "no internet"})


def _options(home: Path) -> Sequence[str]:
    return (home / "arguments").read_text().splitlines()


def test_profiles_are_loaded_on_a_machine_without_sudo(critest: Critest, tmp_path: Path) -> None:
    assert critest.run(tmp_path / "home", focus=[], say=print) == (Case("runs", "passed", 0.0),)


def test_cases_are_chosen_by_expressions_and_left_out_by_name(critest: Critest, tmp_path: Path) -> None:
    critest.run(tmp_path / "home", focus=["exec", "logs$"], say=print)
    options = [option for option in _options(tmp_path / "home") if "focus" in option or "skip" in option]
    assert options == ["-ginkgo.skip=a\\ digest", "-ginkgo.focus=exec", "-ginkgo.focus=logs$"]


def test_names_are_read_without_running_a_case(critest: Critest, tmp_path: Path) -> None:
    assert critest.names(tmp_path / "home") == ["runs"]
    assert "-ginkgo.dry-run" in _options(tmp_path / "home")
