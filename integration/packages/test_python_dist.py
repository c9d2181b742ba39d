"""Wheel and sdist, installed by pip without a network."""

import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node.commands import run
from integration.packages.conftest import Packages
from release.bundle import fetch_bundle, this_machine, wheels_for
from release.python_dist import build_wheel
from release.source import Source, copied_source, supported_pythons
from shim import __version__, share

_SECONDS = 300


def test_a_wheel_installs_a_node(packages: Packages, tmp_path: Path) -> None:
    wheels = wheels_for(fetch_bundle([this_machine()]), this_machine(), f"3.{sys.version_info.minor}")
    python = tmp_path / "venv/bin/python"
    run([sys.executable, "-m", "venv", tmp_path / "venv"], timeout=_SECONDS)
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels]
    run([*pip, packages.one("*.whl")], timeout=_SECONDS)
    command = tmp_path / "venv/bin/pydockershim"

    root = tmp_path / "node"
    run([command, "install", "--root", root, "--cni", "10-bridge"], timeout=_SECONDS)

    assert f"ExecStart={command} serve\n" in (root / "etc/systemd/system/pydockershim.service").read_text()
    assert (root / "etc/cni/net.d/10-bridge.conflist").read_text() == share.example("10-bridge")
    assert run([command, "version"], timeout=_SECONDS).startswith(f"pydockershim {__version__}\n")
    run([command, "uninstall", "--root", root], timeout=_SECONDS)
    assert not [path for path in root.rglob("*") if "pydockershim" in path.name]


@pytest.fixture
def closed_umask() -> Iterator[None]:
    """A umask that differs from the first build's."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
def test_builds_from_the_checkout_and_from_the_sdist_give_the_same_wheel(packages: Packages, tmp_path: Path) -> None:
    with tarfile.open(packages.one("*.tar.gz")) as tar:
        tar.extractall(tmp_path, filter="data")
    source = copied_source(tmp_path / "checkout")
    unpacked = Source(tree=tmp_path / f"pydockershim-{__version__}", version=source.version, time=source.time)
    (tmp_path / "again").mkdir()

    again = build_wheel(unpacked, tmp_path / "again")

    assert again.read_bytes() == packages.one("*.whl").read_bytes()


def test_the_sdist_contains_the_sources_of_the_packages(packages: Packages) -> None:
    with tarfile.open(packages.one("*.tar.gz")) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    for name in ("Dockerfile", "Makefile", "packaging/bundle.txt", "packaging/scripts/installed.sh", "docs/install.md"):
        assert name in names
    assert supported_pythons(Path(__file__).parents[2])[0] == "3.11"
