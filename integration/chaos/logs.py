"""Checks that a container's CRI log has all output that Docker has, once and in order."""

from itertools import pairwise
from pathlib import Path

import docker
import requests

from integration.logs import crilog
from integration.node.engine import Engine, answers


def log_violations(
    path: Path, engine: Engine, container: str, *, contiguous: bool, once: bool = True, ended: bool = True
) -> list[str]:
    """Return what is wrong with the log of a container that counts up.

    `contiguous`: Docker cannot have lost output, so no number may be missing. Unless `once`, the container may have
    started again and counted from 0 several times. If `ended`, the log must hold all output that Docker has. Docker's
    output is not compared while Docker does not answer.
    """
    try:
        # Probed first, because the SDK leaves its socket open when a connection is refused.
        docker_has = _numbers_of_docker(engine, container) if answers(engine.socket) else []
    except (docker.errors.APIError, requests.RequestException):
        docker_has = []
    try:
        lines = crilog.read(path) if ended else crilog.so_far(path)
        numbers = crilog.numbers(lines)
    except (AssertionError, OSError, ValueError, IndexError) as error:
        return [f"log {path}: {error}"]
    return [
        f"log {path} of {container[:12]}: {violation}"
        for violation in faults_of(numbers, docker_has, contiguous=contiguous, once=once)
    ]


def _numbers_of_docker(engine: Engine, container: str) -> list[int]:
    text: bytes = engine.api.logs(container, stdout=True, stderr=False)
    return [int(line) for line in text.splitlines() if line.isdigit()]


def faults_of(numbers: list[int], docker_has: list[int], *, contiguous: bool, once: bool = True) -> list[str]:
    """Return what is wrong with the numbers of a log, given the numbers that Docker has."""
    found = []
    for before, after in pairwise(numbers):
        if after <= before and (once or after):
            found.append(f"{after} comes after {before}")
    missing = sorted(set(docker_has) - set(numbers))
    if missing:
        found.append(f"{len(missing)} lines that Docker has are missing, the first is {missing[0]}")
    if contiguous and once and numbers and not missing and numbers != list(range(len(numbers))) and not found:
        lost = sorted(set(range(numbers[-1] + 1)) - set(numbers))
        found.append(f"{len(lost)} lines are missing, the first is {lost[0]}")
    return found
