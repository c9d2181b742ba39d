"""The lowest versions that `pyproject.toml` allows, as requirements and as wheels."""

import hashlib
import os
import sys
import tomllib
from pathlib import Path

from integration.node.commands import run, step
from integration.node.packages import cache_directory
from release.source import CHECKOUT

LAST_PYTHON = (3, 11)
"""The last CPython for which the oldest grpcio has wheels."""
_SECONDS = 900


def lowest() -> list[str]:
    """Return a requirement for exactly the lowest version of each dependency."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return [_lower_end(requirement) for requirement in project["dependencies"]]


def development() -> list[str]:
    """Return the requirements of the tests, without tracing, whose libraries need newer versions."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["dev"]
    return [requirement for requirement in wanted if not requirement.startswith(project["name"])]


def lowest_wheels() -> Path:
    """Return the directory of the wheels of the lowest versions and their dependencies."""
    recipe = hashlib.sha256("\n".join([*lowest(), sys.version]).encode()).hexdigest()[:12]
    return cache_directory() / f"wheels-lowest-{recipe}"


def fetch_lowest() -> Path:
    """Download the wheels of the lowest versions, and return their directory."""
    directory = lowest_wheels()
    if not directory.exists():
        partial = directory.with_name(f".{directory.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        with step("fetching the lowest versions of the libraries"):
            run([*pip, "--only-binary=:all:", "--dest", partial, *lowest()], timeout=_SECONDS)
            partial.replace(directory)
    return directory


def _lower_end(requirement: str) -> str:
    name, separator, bounds = requirement.partition(">=")
    if not separator:
        raise ValueError(f"{requirement} has no lower bound")
    return f"{name}=={bounds.partition(',')[0]}"
