"""Wheel and sdist, by the hooks of setuptools that pip uses, too."""

import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from release.archive import write_tar_gz
from release.commands import run_tool
from release.source import Source

_HOOK = "import sys; from setuptools import build_meta as hooks; getattr(hooks, sys.argv[1])(sys.argv[2])"


def build_wheel(source: Source, into: Path) -> Path:
    """Build the wheel, which is the same on every machine: it holds no compiled code."""
    return _built(source, "build_wheel", into, "*.whl")


def build_sdist(source: Source, into: Path) -> Path:
    """Build the sdist; packed again, since setuptools gives it the time and user of the build."""
    with TemporaryDirectory(prefix="pydockershim-sdist-") as scratch:
        made = _built(source, "build_sdist", Path(scratch), "*.tar.gz")
        with tarfile.open(made) as tar:
            tar.extractall(scratch, filter="data")
        archive = into / made.name
        write_tar_gz(archive, tree=Path(scratch) / made.name.removesuffix(".tar.gz"), time=source.time)
    return archive


def _built(source: Source, hook: str, into: Path, pattern: str) -> Path:
    run_tool([sys.executable, "-c", _HOOK, hook, into], environ=source.environ, cwd=source.tree)
    (made,) = into.glob(pattern)
    return made
