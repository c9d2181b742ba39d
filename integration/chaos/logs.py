"""Whether a container's CRI log has everything that Docker has of its output, once and in order."""

from itertools import pairwise
from pathlib import Path

import docker
import requests

from integration.logs import crilog
from integration.node.engine import Engine, answers


def log_violations(
    path: Path, engine: Engine, container: str, *, contiguous: bool, once: bool = True, ended: bool = True
) -> list[str]:
    """Say what is wrong with the log of a container that counts up.

    `contiguous` where Docker cannot have lost anything: then no number may be missing. One that has not run `once`
    may have counted from 0 several times. Of a container that has `ended` all that Docker has must be there. Nothing
    can be said while Docker does not answer.
    """
    try:
        # Asked first, since the SDK leaves its socket open when a connection is refused.
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
    """Say what is wrong with the numbers of a log, beside those that Docker has."""
    found = []
    for before, after in pairwise(numbers):
        if after <= before and (once or after):
            found.append(f"{after} comes after {before}")
    missing = sorted(set(docker_has) - set(numbers))
    if missing:
        found.append(f"{len(missing)} lines are missing that Docker has, the first is {missing[0]}")
    if contiguous and once and numbers and not missing and numbers != list(range(len(numbers))) and not found:
        lost = sorted(set(range(numbers[-1] + 1)) - set(numbers))
        found.append(f"{len(lost)} lines are missing, the first is {lost[0]}")
    return found
