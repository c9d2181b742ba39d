"""A pod moves to an Engine of another version with the same kind of image store."""

import os
from collections.abc import Iterator
from copy import copy

import pytest

from integration.checkpoint.test_pod import Migration
from integration.conftest import Images, Served, make_engine, make_node_dirs, serving
from integration.networks import bridge, conflist
from integration.node import images as node_images
from integration.node.criu import Criu
from integration.node.engine import own_link
from integration.node.images import Image
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet
from integration.server import PROGRAM

OTHERS = {"20.10": "28", "28": "26", "28-containerd": "29-containerd", "29-containerd": "28-containerd"}
LINK, SUBNET = "moved0", "10.98.0.0/16"


@pytest.fixture
def elsewhere(engine_name: str, node: Node, pause_image: Image, shared_criu: Criu) -> Iterator[Served]:
    """Run a server on another Engine, with another pod network."""
    if engine_name not in OTHERS:
        pytest.skip("another test moves pods to this engine")
    engine = make_engine(node, OTHERS[engine_name], variant="-moved")
    dirs = make_node_dirs(node, new_home("moved"))
    network = bridge(dirs.cni_leases, link=LINK, subnets=[SUBNET])
    (dirs.cni_conf / "10-moved.conflist").write_text(conflist(network, name="moved"))
    path = f"PATH={shared_criu.script.parent}{os.pathsep}{os.environ['PATH']}"
    try:
        engine.start()
        for image in (pause_image, node_images.busybox_image(node.busybox)):
            node_images.load(engine.api, image)
        with own_link(LINK), serving(engine, dirs, ("env", path, *PROGRAM)) as served:
            yield served
    finally:
        engine.close()


@pytest.fixture
def migration(served: Served, images: Images, kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory) -> Migration:
    del images
    return Migration(served, kubelet, tmp_path_factory.mktemp("moved") / "checkpoint")


def test_a_pod_moves_to_an_engine_of_another_version(migration: Migration, elsewhere: Served) -> None:
    names = [migration.counter(), migration.counter()]
    address = migration.served.cri.sandbox_status(migration.pod.id).network.ip
    migration.checkpoint()
    at = {name: migration.written(name) for name in names}
    migration.remove()

    there = copy(migration)
    there.served, there.kubelet = elsewhere, Kubelet(elsewhere.cri, migration.kubelet.image)
    moved = there.restore()
    for name, container in moved.containers.items():
        there.wait_past(container, at[name] + 2)
    assert elsewhere.cri.sandbox_status(moved.pod.id).network.ip not in ("", address)
    there.kubelet.remove_all()
