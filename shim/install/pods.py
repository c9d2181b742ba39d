"""The pods on a node, which only the server can remove completely."""

from collections.abc import Callable
from typing import TypeVar

from shim.base import deadline
from shim.checkpoint.root import SANDBOXES
from shim.checkpoint.store import SUFFIX
from shim.config.model import Config
from shim.domain.errors import ShimError
from shim.domain.labels import may_be_of_a_pod
from shim.engine.answers import EngineInfo
from shim.engine.client import DockerEngine

T = TypeVar("T")

_SECONDS = 10.0


def pods_on_node(config: Config) -> list[str]:
    """Return the names of pods' containers in Docker, and the sandboxes that only have a checkpoint left."""
    containers = _containers(config.docker_endpoint)
    known = set(containers.values())
    sandboxes = {path.stem for path in (config.root_directory / SANDBOXES).glob(f"*{SUFFIX}")} - containers.keys()
    return sorted(known | {f"sandbox {sandbox[:12]}" for sandbox in sandboxes})


def is_docker_empty(endpoint: str) -> bool:
    """Return whether Docker answers and runs no container."""
    rows = _ask(endpoint, DockerEngine.list_containers)
    return rows is not None and all(row.state != "running" for row in rows)


def docker_info(endpoint: str) -> EngineInfo | None:
    """Return Docker's current info; None if it does not answer."""
    return _ask(endpoint, DockerEngine.info)


def _ask(endpoint: str, question: Callable[[DockerEngine], T]) -> T | None:
    """Return Docker's answer; None if it does not answer."""
    engine = DockerEngine(endpoint, request_timeout=_SECONDS)
    try:
        with deadline.bound(_SECONDS):
            return question(engine)
    except ShimError:
        return None
    finally:
        engine.close()


def _containers(endpoint: str) -> dict[str, str]:
    """Return the containers of pods, name by id; empty if Docker does not answer, since the checkpoints tell enough."""
    return {
        row.id: name.removeprefix("/")
        for row in _ask(endpoint, DockerEngine.list_containers) or ()
        for name in (row.names or [])[:1]
        if may_be_of_a_pod(row.labels or {}, network_mode=row.host_config.network_mode)
    }
