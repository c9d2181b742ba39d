"""Recorded outcomes of a pytest session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.conformance.results import NOT_REACHED, SUITE_OF_TESTS, Run, file_name, read
from shim import __version__

_ROOT = Path(__file__).parents[2]
_CONFTEST = """\
from pathlib import Path
from types import SimpleNamespace

import pytest

from integration.node.engine import Engine


class Stand(Engine):
    name, version, daemon = "28", "28.5.2", SimpleNamespace(running=True)
    api = SimpleNamespace(info=lambda: {"CgroupVersion": "2", "CgroupDriver": "systemd"})

    def __init__(self):
        pass


def pytest_addoption(parser):
    parser.addoption("--results", type=Path)
    parser.addoption("--note", default="")
    parser.addoption("--killed", action="store_true")


def pytest_generate_tests(metafunc):
    if "engine_name" in metafunc.fixturenames:
        metafunc.parametrize("engine_name", ["28"], scope="session")


@pytest.fixture(scope="session")
def engine(engine_name):
    return Stand()
"""
_TESTS = """\
import os

import pytest


def test_good(engine): pass


def test_bad(engine):
    assert 1 == 2, "a reason\\nand where"


def test_left_out(engine, request):
    if request.config.getoption("--killed"):
        os._exit(9)
    pytest.skip("there is none")


@pytest.fixture
def untidy():
    yield
    raise RuntimeError("something was left")


def test_untidy(engine, untidy): pass


def test_untidy_and_bad(engine, untidy):
    assert False, "first"


@pytest.fixture
def absent():
    raise OSError("no such thing")


def test_without_its_fixture(absent, engine): pass


def test_without_engine(): pass
"""


@pytest.fixture
def session(tmp_path: Path) -> tuple[Run, ...]:
    return _session(tmp_path)


def _session(tmp_path: Path, *more: str) -> tuple[Run, ...]:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(_TESTS)
    words = ["-p", "integration.outcomes", "--results", str(tmp_path / "made/results"), "--note", "so it was", *more]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "test_it.py"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(_ROOT)}, check=False, timeout=120)
    (kept,) = (tmp_path / "made/results").iterdir()
    runs = read(kept)
    assert kept.name == file_name(runs[0])
    return runs


def test_each_engine_has_a_run(session: tuple[Run, ...]) -> None:
    (run,) = session
    assert (run.suite, run.version, run.engine, run.docker) == (SUITE_OF_TESTS, __version__, "28", "28.5.2")
    assert (run.machine.cgroup, run.machine.driver) == ("v2", "systemd")
    assert run.machine.python == f"3.{sys.version_info.minor}"
    assert run.note == "so it was"


def test_the_worst_part_of_each_test_is_kept(session: tuple[Run, ...]) -> None:
    (run,) = session
    assert [(case.name.partition("::")[2], case.state, case.reason) for case in run.cases] == [
        ("test_bad[28]", "failed", "AssertionError: a reason\n  and where\nassert 1 == 2"),
        ("test_good[28]", "passed", ""),
        ("test_left_out[28]", "skipped", "there is none"),
        ("test_untidy[28]", "failed", "RuntimeError: something was left"),
        ("test_untidy_and_bad[28]", "failed", "AssertionError: first\nassert False"),
        ("test_without_its_fixture[28]", "failed", "OSError: no such thing"),
    ]


def test_tests_that_did_not_run_are_skipped(tmp_path: Path) -> None:
    (run,) = _session(tmp_path, "--maxfail=1")
    assert (run.count("passed"), run.count("failed")) == (1, 1)
    assert {case.reason for case in run.cases if case.state == "skipped"} == {NOT_REACHED}
    assert run.count("skipped") == 4


def test_outcomes_survive_a_killed_session(tmp_path: Path) -> None:
    (run,) = _session(tmp_path, "--killed")
    assert {case.name.partition("::")[2]: case.state for case in run.cases if case.reason != NOT_REACHED} == {
        "test_good[28]": "passed",
        "test_bad[28]": "failed",
    }
