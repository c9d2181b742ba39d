"""Daemons with defaults of their own for what a container may do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.conftest import Served, make_engine, make_node_dirs, serving
from integration.networks import bridge, conflist
from integration.node import images as node_images
from integration.node.box import HOME, Node
from integration.node.engine import Engine, remove_link
from integration.node.images import Image
from integration.pods.kubelet import Kubelet, proc_status, secured, unused_name
from shim.api.v1 import api_pb2 as pb

LINK = "defaults0"
DEFAULT = pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)


@contextmanager
def served_by(engine: Engine, node: Node, pause: Image) -> Iterator[tuple[Served, Kubelet]]:
    """Run an engine of its own with a server on it."""
    dirs = make_node_dirs(node, HOME / unused_name("defaults"))
    plugin = bridge(dirs.cni_leases, subnets=["10.85.0.0/16"], link=LINK)
    (dirs.cni_conf / "10-defaults.conflist").write_text(conflist(plugin, name="defaults"))
    engine.start()
    try:
        for image in (pause, node_images.busybox_image(node.busybox)):
            node_images.load(engine.api, image)
        with serving(engine, dirs) as made:
            yield made, Kubelet(made.cri, node_images.BUSYBOX)
    finally:
        engine.close()
        remove_link(LINK)


def test_an_administrators_profile_is_the_default_and_privileges_are_the_pods_to_say(
    engine: Engine, node: Node, pause_image: Image, tmp_path: Path
) -> None:
    profile = tmp_path / "administrators.json"
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    settings: dict[str, object] = {"seccomp-profile": str(profile), "no-new-privileges": True}
    strict = make_engine(node, engine.name, variant="s", settings=settings)
    with served_by(strict, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        container = kubelet.started(pod, **secured(seccomp=DEFAULT, no_new_privs=False))
        free = kubelet.started(pod, **secured(no_new_privs=True))

        assert proc_status(served, container)["NoNewPrivs"] == ["0"]
        assert proc_status(served, free)["NoNewPrivs"] == ["1"]
        assert "Operation not supported" in kubelet.inside(container, "mkdir /tmp/x")
        assert kubelet.inside(free, "mkdir /tmp/x") == ""


def test_a_daemon_that_confines_nothing_is_not_taken_at_its_word(
    engine: Engine, node: Node, pause_image: Image
) -> None:
    if engine.name == "20.10":
        pytest.skip("this engine cannot be told to confine nothing")
    loose = make_engine(node, engine.name, variant="u", settings={"seccomp-profile": "unconfined"})
    with served_by(loose, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        container = kubelet.started(pod, **secured(seccomp=DEFAULT))

        assert proc_status(served, container)["Seccomp"] == ["2"]
        assert proc_status(served, pod.id)["Seccomp"] == ["2"]
