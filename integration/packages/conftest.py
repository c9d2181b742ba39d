"""Packages, built once, and the root of a node for their installation."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.node.commands import run
from integration.node.mounts import unmount_all
from release.build import build_into
from release.bundle import this_machine

_COMMAND_SECONDS = 300
_LONG = ("fresh", "test_aarch64.py", "test_all_kinds.py")
_PLACES = ("etc", "opt", "usr", "var/lib")
"""Directories of a root in which packages put files."""
_OF_DPKG = "var/lib/dpkg"
"""Changes at any time."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave fresh and emulated machines and all kinds of packages to `make test-packages`."""
    is_long = collection_path.name in _LONG
    return True if is_long and not config.getoption("--all-packages") else None


@dataclass(frozen=True, slots=True)
class Packages:
    """Files of a build."""

    directory: Path

    def one(self, pattern: str) -> Path:
        """Return the only package whose name matches."""
        (found,) = self.directory.glob(pattern)
        return found


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Build the packages that every run of the tests builds."""
    directory = tmp_path_factory.mktemp("packages") / "made"
    build_into(directory, ["wheel", "sdist", "deb"], [this_machine()])
    return Packages(directory)


@dataclass(frozen=True, slots=True)
class Root:
    """The root of a node that is not running: this machine's, with changes in memory."""

    path: Path

    def run(self, *words: str | Path) -> str:
        """Run a program in the root and return its output; raise NodeError if it fails."""
        environ = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        return run(["chroot", self.path, *words], timeout=_COMMAND_SECONDS, env=environ)

    def fails(self, *words: str | Path) -> str:
        """Run a program that must fail and return its error output."""
        done = subprocess.run(["chroot", self.path, *words], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    def files(self) -> set[str]:
        """Return all paths in the directories where packages put files."""
        found: set[str] = set()
        for place in _PLACES:
            for directory, names, files in os.walk(self.path / place):
                below = Path(directory).relative_to(self.path)
                names[:] = [name for name in names if str(below / name) != _OF_DPKG]
                found |= {str(below / name) for name in (*names, *files)}
        return found

    def text(self, path: str) -> str:
        """Return the content of a file."""
        return (self.path / path.removeprefix("/")).read_text()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    """Mount this machine's root file system a second time; changes are in memory, and discarded at the end."""
    memory = tmp_path / "memory"
    memory.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", memory], timeout=_COMMAND_SECONDS)
    try:
        for name in ("upper", "work", "lower", "root"):
            (memory / name).mkdir()
        place = memory / "root"
        # A bind mount, without the file systems mounted below `/`.
        run(["mount", "--bind", "/", memory / "lower"], timeout=_COMMAND_SECONDS)
        options = f"lowerdir={memory}/lower,upperdir={memory}/upper,workdir={memory}/work"
        run(["mount", "-t", "overlay", "-o", options, "overlay", place], timeout=_COMMAND_SECONDS)
        run(["mount", "--rbind", "/dev", place / "dev"], timeout=_COMMAND_SECONDS)
        run(["mount", "--make-rslave", place / "dev"], timeout=_COMMAND_SECONDS)
        run(["mount", "-t", "proc", "proc", place / "proc"], timeout=_COMMAND_SECONDS)
        # The test of the demo, which may run at the same time, creates and removes these directories on the machine.
        for name in ("usr/lib/cni", "var/lib/docker"):
            (place / name).mkdir(exist_ok=True)
        # A purge would remove the state of a server that has run on this machine.
        shutil.rmtree(place / "var/lib/pydockershim", ignore_errors=True)
        # Without this, each dpkg would index all manual pages of this machine again, which takes seconds.
        (place / "var/lib/man-db/auto-update").unlink(missing_ok=True)
        yield Root(place)
    finally:
        unmount_all(memory)
