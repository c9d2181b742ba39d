"""Fixtures: the image functions on a real engine, without a server."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.node.engine import Engine
from integration.node.images import File, busybox_image, load
from integration.node.isolation import Node
from integration.node.registry import Registry
from integration.node.registry_proxy import Proxy
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.plugins import Plugins
from shim.cni.watch import ConfDirectory
from shim.config.model import Config
from shim.criu.support import CriuSupport
from shim.dockerd.facts import EngineFacts
from shim.engine.client import DockerEngine
from shim.hostfs.client import HostFs
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.runtime import Cni, Runtime
from shim.streaming.tokens import Tokens
from shim.view.node_view import NodeView
from tests.fakes.logs import FakeLogs

Publish = Callable[..., str]
"""`publish(name, size=, private=, config=, programs=)` returns the reference of a new image that can be pulled."""

PROGRESS_DEADLINE = 2.0
"""Seconds that a pull may be silent in these tests."""


@pytest.fixture
def rt(engine: Engine, tmp_path: Path) -> Iterator[Runtime]:
    """Provide a runtime on the engine. Its view lists the images once and follows no events."""
    config = Config(docker_endpoint=engine.url, image_pull_progress_deadline=PROGRESS_DEADLINE)
    client = DockerEngine(engine.url, request_timeout=30)
    view = NodeView(client)
    epoch = view.begin_sync()
    view.images.refresh()
    view.complete_sync(epoch)
    facts = EngineFacts(client, restrict_oom_score_adj="auto")
    own_exec = OwnExec(is_wanted=False)
    yield Runtime(
        config=config,
        engine=client,
        facts=facts,
        user_namespaces=UserNamespaces(facts, files=config.root_directory),
        own_exec=own_exec,
        criu=CriuSupport(own_exec, work=tmp_path, environ={}),
        view=view,
        logs=FakeLogs(),
        checkpoints=CheckpointStore(tmp_path / "sandboxes"),
        limits=LimitStore(tmp_path / "limits"),
        cni=Cni(
            networks=ConfDirectory(tmp_path, bin_dirs=[]),
            plugins=Plugins(bin_dirs=[], cache_dir=tmp_path, timeout=10),
            pod_cidr=PodCidr(tmp_path / "pod-cidr", default=""),
        ),
        host_fs=HostFs(),
        stream_tokens=Tokens(base_url=""),
    )
    client.close()


@pytest.fixture
def proxy(registry: Registry) -> Iterator[Proxy]:
    """Provide a proxy to the registry that can be blocked."""
    made = Proxy(registry.address)
    yield made
    made.close()


@pytest.fixture
def publish(engine: Engine, registry: Registry, private_registry: Registry, node: Node) -> Publish:
    """Provide a maker of unique images that are in a registry and not on the node.

    Images have no programs unless a test runs them: Docker packs and unpacks each image twice.
    """

    def made(
        name: str,
        *,
        size: int = 0,
        private: bool = False,
        config: dict[str, object] | None = None,
        programs: bool = False,
    ) -> str:
        image = busybox_image(node.busybox, reference="scratch/made:1", config=config)
        extra = File("noise", os.urandom(max(size, 16)))
        load(engine.api, replace(image, files=(*image.files, extra) if programs else (extra,)))
        reference = (private_registry if private else registry).push(engine.api, "scratch/made:1", name=name)
        engine.api.remove_image("scratch/made:1")
        return reference

    return made
