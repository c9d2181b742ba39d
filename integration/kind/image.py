"""The node image: the target `kind-node` of the Dockerfile, built on the stand-in without a network."""

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import docker

from integration.kind.prepare import Prepared
from integration.node.commands import NodeError
from integration.node.images import archive, busybox_image, pause_image
from integration.node.isolation import Node

CHECKOUT = Path(__file__).parents[2]
STAND_IN = "node.test/stand-in:1"
NODE_IMAGE = "node.test/kind-node:1"
PAUSE = "registry.k8s.io/pause:3.10"
"""The pause image of the node's containerd, which differs from the server's default."""
VERSION = "v1.36.2"

_STAND_IN_DOCKERFILE = """\
FROM node.test/base:1
COPY entrypoint /usr/local/bin/entrypoint
COPY config.toml /etc/containerd/config.toml
COPY kind /kind
COPY plugins /opt/cni/bin
COPY 10-bridge.conflist /etc/cni/net.d/10-bridge.conflist
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
"""
_CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
"""
_IN_CONTEXT = ("Dockerfile", "packaging/kind/files", "packaging/systemd")


def containerd_store() -> str:
    """Return a daemon.json that selects the containerd image store."""
    settings = json.loads((CHECKOUT / "packaging/kind/files/etc/docker/daemon.json").read_text())
    return json.dumps(settings | {"features": {"containerd-snapshotter": True}, "storage-driver": "overlayfs"})


def build_stand_in(api: docker.APIClient, *, prepared: Prepared, node: Node, scratch: Path) -> None:
    """Build STAND_IN."""
    with prepared.base.open("rb") as base:
        api.import_image_from_data(base, repository="node.test/base", tag="1")
    build_context(api, _stand_in(node, scratch / "stand-in"), tag=STAND_IN)


def build(api: docker.APIClient, *, prepared: Prepared, node: Node, scratch: Path) -> None:
    """Build NODE_IMAGE on STAND_IN."""
    build_stand_in(api, prepared=prepared, node=node, scratch=scratch)
    context = scratch / "context"
    for name in _IN_CONTEXT:
        source = CHECKOUT / name
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, context / name)
    shutil.copytree(prepared.wheels, context / "build/kind/wheels")
    build_context(api, context, tag=NODE_IMAGE, target="kind-node", buildargs={"NODE": STAND_IN, "PIP_NO_INDEX": "1"})


def _stand_in(node: Node, context: Path) -> Path:
    (context / "kind/images").mkdir(parents=True)
    (context / "Dockerfile").write_text(_STAND_IN_DOCKERFILE)
    (context / "config.toml").write_text(_CONTAINERD)
    (context / "kind/version").write_text(f"{VERSION}\n")
    (context / "kind/images/pause.tar").write_bytes(archive(replace(pause_image(node.busybox), reference=PAUSE)))
    (context / "kind/images/busybox.tar").write_bytes(archive(busybox_image(node.busybox)))
    shutil.copy(Path(__file__).with_name("stand_in") / "entrypoint", context / "entrypoint")
    shutil.copy(CHECKOUT / "cni_conf_examples/10-bridge.conflist", context)
    plugins = node.newer_plugins or node.tools
    shutil.copytree(plugins.root / "usr/lib/cni", context / "plugins")
    return context


def build_context(
    api: docker.APIClient, context: Path, *, tag: str, target: str = "", buildargs: dict[str, str] | None = None
) -> None:
    """Build an image from a directory, without a network."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(context, arcname=".")
    buffer.seek(0)
    said: list[str] = []
    for line in api.build(
        fileobj=buffer,
        custom_context=True,
        tag=tag,
        target=target,
        buildargs=buildargs,
        network_mode="none",
        rm=True,
        decode=True,
    ):
        if "error" in line:
            raise NodeError(f"build {tag}: {line['error']}\n{''.join(said[-30:])}")
        said.append(str(line.get("stream", "")))
