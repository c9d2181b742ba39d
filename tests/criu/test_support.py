"""Whether criu works is learned by a real dump, once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim.criu import program
from shim.criu.support import CriuSupport
from shim.own_exec.own_exec import OwnExec
from tests.waits import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root")

Make = Callable[[str], CriuSupport]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Provide a function that makes a criu of the cases of a shell script; its calls are lines of `calls`."""
    monkeypatch.setattr(program, "_DIRECTORIES", "/usr/bin:/bin")
    own_exec = OwnExec(is_wanted=False)

    def write(cases: str) -> CriuSupport:
        criu = tmp_path / "criu"
        head = f'echo "$1" >> {tmp_path}/calls\ncase "$1" in\n--version) echo Version: 4.2;;'
        criu.write_text(f"#!/bin/sh\n{head}\n{cases}\nesac\n")
        criu.chmod(0o755)
        return CriuSupport(own_exec, work=tmp_path / "work", environ={"PATH": str(tmp_path)})

    yield write
    own_exec.stop()


def dumps(tmp_path: Path) -> int:
    return (tmp_path / "calls").read_text().split().count("dump")


def test_a_criu_that_dumps_is_tried_once(make: Make, tmp_path: Path) -> None:
    criu = make("")
    wait_until(lambda: criu.describe() == f"{tmp_path}/criu 4.2: dumps processes")
    criu.describe()
    assert dumps(tmp_path) == 1
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("check) echo unexpected bounds; exit 1;;", "criu check: unexpected bounds"),
        ("dump) exit 3;;", "a process cannot be dumped: criu dump ended with 3"),
    ],
)
def test_a_criu_that_does_not_dump_is_named_with_its_words(make: Make, tmp_path: Path, cases: str, said: str) -> None:
    criu = make(cases)
    wait_until(lambda: said in criu.describe())
    criu.describe()
    assert dumps(tmp_path) == ("dump" in cases)


def test_a_node_without_criu_tries_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_DIRECTORIES", str(tmp_path))
    criu = CriuSupport(OwnExec(is_wanted=False), work=tmp_path, environ={})
    assert criu.describe().startswith("not found: install the package criu")
