"""The lower ends of what `pyproject.toml` asks for, as requirements and as wheels."""

import hashlib
import os
import sys
import tomllib
from pathlib import Path

from integration.node.commands import run, step
from integration.node.packages import cache_directory
from release.source import CHECKOUT

LAST_PYTHON = (3, 11)
"""The last CPython that the oldest grpcio has wheels for."""
_SECONDS = 900


def lowest() -> list[str]:
    """Return a requirement for each dependency that only its lowest version meets."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return [_lower_end(requirement) for requirement in project["dependencies"]]


def development() -> list[str]:
    """Return the requirements of the tests, without those of tracing, whose libraries ask for newer ones."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["dev"]
    return [requirement for requirement in wanted if not requirement.startswith(project["name"])]


def lowest_wheels() -> Path:
    """Return the directory where the wheels of the lowest versions are, with those of what they need themselves."""
    recipe = hashlib.sha256("\n".join([*lowest(), sys.version]).encode()).hexdigest()[:12]
    return cache_directory() / f"wheels-lowest-{recipe}"


def fetch_lowest() -> Path:
    """Return that directory, filled."""
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
        raise ValueError(f"{requirement}: there is no lower bound")
    return f"{name}=={bounds.partition(',')[0]}"
