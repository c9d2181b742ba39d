"""The source that everything is built from: a clean copy of the checkout, its version and its time."""

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from release.errors import BuildError

CHECKOUT = Path(__file__).resolve().parents[1]
TIME = "SOURCE_DATE_EPOCH"
"""Environment variable with the time that files of a build get (reproducible-builds.org)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A clean tree, without what builds and tests leave in a checkout."""

    tree: Path
    version: str
    time: int
    """Seconds since the epoch, that of the last commit: all files of a build get it."""

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of tools that build."""
        return {**os.environ, TIME: str(self.time), "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}


def copied_source(into: Path) -> Source:
    """Copy the files of the checkout that git knows, or would take, to the new directory `into`."""
    for name in _names():
        place = CHECKOUT / name
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            target.symlink_to(place.readlink())
        elif place.is_file():
            shutil.copyfile(place, target)
            target.chmod(0o755 if os.access(place, os.X_OK) else 0o644)
    return Source(tree=into, version=version_of(into), time=_time())


def version_of(tree: Path) -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"])


def maintainer_of(tree: Path) -> str:
    """Return the first maintainer in pyproject.toml as `Name <address>`; without one it is invalid."""
    maintainer = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["maintainers"][0]
    return f"{maintainer['name']} <{maintainer.get('email', 'no-address@pydockershim.invalid')}>"


def supported_pythons(tree: Path) -> list[str]:
    """Return the CPythons that the classifiers of pyproject.toml name, as `3.11`."""
    prefix = "Programming Language :: Python :: 3."
    classifiers = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["classifiers"]
    return [f"3.{name.removeprefix(prefix)}" for name in classifiers if name.startswith(prefix)]


def is_clean() -> bool:
    """Return whether the checkout is what its last commit says."""
    return not _git("status", "--porcelain")


def notes_of(version: str, *, changelog: Path = CHECKOUT / "CHANGELOG.md") -> str:
    """Return the section of CHANGELOG.md for a version, with its dated heading; empty where there is none."""
    sections = re.split(r"^(?=## )", changelog.read_text(), flags=re.MULTILINE)
    return next((section for section in sections if section.startswith(f"## {version} (2")), "")


def _names() -> list[str]:
    if not (CHECKOUT / ".git").exists():
        return [str(path.relative_to(CHECKOUT)) for path in CHECKOUT.rglob("*") if path.is_file()]
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in listed.split("\0") if name]


def _time() -> int:
    if given := os.environ.get(TIME):
        return int(given)
    if not (CHECKOUT / ".git").exists():
        raise BuildError(f"without git the time of the source is not known: set {TIME} to seconds since the epoch")
    return int(_git("log", "-1", "--format=%ct"))


def _git(*words: str) -> str:
    # The checkout may belong to another user than the one who builds.
    command = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), *words]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(f"git {words[0]} in {CHECKOUT}: {finished.stderr.strip()}")
    return finished.stdout
