"""containerd-shims of containers that Docker has lost: reported at the start, and ended if they are the server's."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import NodeDirs, make_engine, serving
from integration.networks import bridge, conflist
from integration.node import images as node_images
from integration.node.containerd import shims, tasks
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node
from integration.pods.kubelet import Kubelet, in_context, in_namespaces, pid_of
from integration.pods.test_doctor import doctor
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

LINK = "pods-leaked"
ADDRESS = "127.0.0.1:10358"


@pytest.fixture
def own_engine(node: Node, engine_name: str) -> Iterator[Engine]:
    """Run a separate engine, whose files the test may damage."""
    made = make_engine(node, engine_name, variant="-leaks", settings={"live-restore": True})
    made.start()
    try:
        for image in (node_images.pause_image(node.busybox), node_images.busybox_image(node.busybox)):
            node_images.load(made.api, image)
        yield made
    finally:
        for shim in shims(made):
            os.kill(shim, signal.SIGKILL)
        wait_until(lambda: not tasks(made))
        made.close()


def lose(engine: Engine, containers: list[str]) -> None:
    """Make Docker forget running containers, as after a crash with loss of files."""
    engine.kill()
    for container in containers:
        (engine.home / "data/containers" / container / "config.v2.json").unlink()
    engine.start()


def test_leaked_containerd_shims_of_the_servers_containers_are_ended_and_others_stay(
    own_engine: Engine, node_dirs: NodeDirs
) -> None:
    (node_dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(node_dirs.cni_leases, link=LINK)))
    with own_link(LINK), serving(own_engine, node_dirs, metrics_bind_addr=ADDRESS) as served:
        kubelet = Kubelet(served.cri, node_images.BUSYBOX)
        own = pb.NamespaceOption(pid=pb.CONTAINER)
        pod, whole = (kubelet.pod(**in_context(namespace_options=own)) for _ in range(2))
        lost = [kubelet.started(pod, linux=in_namespaces(pid=own.pid)) for _ in range(2)]
        stays = kubelet.started(whole, linux=in_namespaces(pid=own.pid))
        api = own_engine.api
        strangers = api.create_container(node_images.BUSYBOX, ["sleep", "3600"], name="stranger")["Id"]
        api.start(strangers)
        processes = [pid_of(served, each) for each in (pod.id, *lost)]

        served.server.stop()
        lose(own_engine, [pod.id, *lost, strangers])
        assert {pod.id, *lost, strangers, whole.id, stays} <= tasks(own_engine)
        reported = doctor(served).stdout
        each_has_one = own_engine.name == "20.10"
        assert reported.count("is left of removed containers") == (4 if each_has_one else 2)
        assert all(each[:12] in reported for each in (*lost, strangers))
        served.restart()

        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in processes))
        wait_until(lambda: not tasks(own_engine) & {pod.id, *lost})
        wait_until(lambda: metric("pydockershim_leaked_shims") == 1)
        assert metric("pydockershim_leaked_shims_ended_total") >= 1
        assert {strangers, whole.id, stays} <= tasks(own_engine)
        assert served.cri.container_status(stays).state == pb.CONTAINER_RUNNING
        assert strangers[:12] in (reported := doctor(served).stdout)
        assert reported.count("is left of removed containers") == 1


def metric(name: str) -> float:
    with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=10) as answer:
        found = [line.split()[1] for line in answer.read().decode().split("\n") if line.startswith(f"{name} ")]
    return float(found[0])
