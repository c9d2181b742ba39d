"""All checks, in the order in which trouble is best mended."""

from collections.abc import Iterator, Mapping

from shim.config.model import Config
from shim.doctor.clients import check_clients
from shim.doctor.docker import check_docker
from shim.doctor.findings import Finding
from shim.doctor.node import check_node
from shim.engine.client import DockerEngine


def check(config: Config, *, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at this node as a server with these settings would find it; findings come as they are made."""
    yield from check_node(config, environ=environ)
    engine = DockerEngine(config.docker_endpoint, request_timeout=config.runtime_request_timeout)
    try:
        yield from check_docker(engine, config)
    finally:
        engine.close()
    yield from check_clients(config.container_runtime_endpoint)
