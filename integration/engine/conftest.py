"""Fixtures: an Engine adapter on each real Engine."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from integration.conftest import Images
from integration.node.engine import Engine as RealEngine
from integration.node.registry import Registry
from integration.waiting import wait_until
from shim.engine.client import DockerEngine
from tests.engine.contract import IMAGE_LABEL, LABEL, Subject

CONTRACT_IMAGE = "example.org/contract/busybox:1"

_serial = count()


@pytest.fixture
def adapter(engine: RealEngine) -> Iterator[DockerEngine]:
    """Make an adapter, and remove every container that the test leaves."""
    made = DockerEngine(engine.url, request_timeout=60)
    yield made
    for container in made.list_containers():
        made.remove_container(container.id)
    made.close()


@pytest.fixture
def subject(adapter: DockerEngine, engine: RealEngine, images: Images, registry: Registry) -> Subject:
    """Return the adapter as the subject of the contract's tests."""
    images.load(CONTRACT_IMAGE, {"Labels": {IMAGE_LABEL: "image", LABEL: "image"}})

    def make(reference: str) -> str:
        # A unique label, so that no other reference shares the image.
        return images.load(reference, {"Labels": {"org.example.serial": str(next(_serial))}})

    def publish(name: str) -> str:
        reference = registry.push(engine.api, make(f"example.org/pushed/{name}:1"), name=f"{name}:1")
        engine.api.remove_image(f"example.org/pushed/{name}:1")
        return reference

    def wait_executed(container_id: str) -> None:
        name = Path(f"/proc/{adapter.inspect_container(container_id).state.pid}/comm")
        wait_until(lambda: not name.read_text().startswith("runc:"))

    return Subject(
        engine=adapter,
        image=CONTRACT_IMAGE,
        make_image=make,
        publish_image=publish,
        expect_exec=lambda _command, _out, _err, _code: None,
        expect_endless_exec=lambda _command, _out: None,
        expect_cat=lambda _command: None,
        expect_stty=lambda _command: None,
        wait_executed=wait_executed,
        names=(f"contract-{next(_serial)}" for _ in count()),
    )
