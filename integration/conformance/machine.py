"""Describes the machine and the commit of a run, from queries only."""

import platform
import subprocess
from pathlib import Path

import docker

from integration.conformance.results import Machine
from integration.node import images

_REPOSITORY = Path(__file__).parents[2]
_RESULTS = "integration/conformance/results"


def commit() -> str:
    """Return the commit of this repository, with `-dirty` after changes; empty outside a git checkout.

    Changed results do not count: a run may have stored some before the next run of the same program.
    """
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{_RESULTS}")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""
    return f"{head}-dirty" if changes else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def machine_of(api: docker.APIClient, *, python: str = platform.python_version()) -> Machine:
    """Describe the machine of a Docker Engine, and the version of Python that runs the server."""
    info = api.info()
    return Machine(
        cgroup=f"v{info.get('CgroupVersion', '1')}",
        driver=info["CgroupDriver"],
        python=".".join(python.split(".")[:2]),
        architecture=images.architecture(),
    )
