"""A booted node, shared by the tests of this folder.

They are run by `make test-kind`, which prepares the parts of the image; elsewhere they are not collected.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.kind.image import build, containerd_store
from integration.kind.kubernetes import Host, prepare_cluster_image
from integration.kind.node import KindNode, booted
from integration.kind.prepare import Prepared
from integration.node.engine import program
from integration.node.isolation import Node

VARIABLE = "PYDOCKERSHIM_KIND"
"""Paths that `python -m integration.kind` has prepared: the archive of the base, and the directory of wheels."""

PROGRAMS_VARIABLE = "PYDOCKERSHIM_KIND_BIN"
"""The directory of kind and Kubernetes, and the archive for etcd and kube-proxy; unset without BIN."""

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


def prepared() -> Prepared:
    """Return the prepared parts."""
    base, wheels = map(Path, os.environ[VARIABLE].split(":"))
    return Prepared(base=base, wheels=wheels)


@pytest.fixture(scope="session")
def host(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run the Docker of the host, with a node image that has Kubernetes."""
    engine = make_engine(node, "28", settings={"insecure-registries": ["172.16.0.0/12"]})
    engine.start()
    client = program("docker", node.stable.path)
    programs, tools = map(Path, os.environ[PROGRAMS_VARIABLE].split(":"))
    try:
        references = prepare_cluster_image(
            engine,
            client,
            prepared=prepared(),
            node=node,
            programs=programs,
            tools=tools,
            scratch=tmp_path_factory.mktemp("cluster-image"),
        )
        yield Host(engine, client, programs, references)
    finally:
        engine.close()


@pytest.fixture(scope="session")
def kind_node(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KindNode]:
    """Build the image and boot a node of it."""
    engine = make_engine(node, "28")
    engine.start()
    made = KindNode(engine, program("docker", node.stable.path), "kind-control-plane")
    try:
        build(engine.api, prepared=prepared(), node=node, scratch=tmp_path_factory.mktemp("node-image"))
        made.start()
        yield made
    finally:
        engine.close()


@pytest.fixture
def node_with_containerd_store(kind_node: KindNode, tmp_path: Path) -> Iterator[KindNode]:
    """Boot a second node whose Docker uses the containerd image store."""
    (tmp_path / "daemon.json").write_text(containerd_store())
    binds = [f"{tmp_path}/daemon.json:/etc/docker/daemon.json:ro"]
    with booted(KindNode(kind_node.engine, kind_node.docker, "kind-worker", binds=binds)) as made:
        yield made
