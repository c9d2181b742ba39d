"""Node images with Kubernetes, from a directory of programs (`BIN=`) and the stand-in of a node image.

KUBERNETES takes the role of kind's node image, CLUSTER_IMAGE is the result of `make kind-image` on it, and
CONTAINERD_IMAGE is a node for comparisons.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.kind.demo import IMAGE
from integration.kind.image import CHECKOUT, PAUSE, STAND_IN, build_context, build_stand_in
from integration.kind.prepare import Prepared
from integration.node.commands import NodeError, run
from integration.node.engine import Engine
from integration.node.isolation import Node, new_home

KUBERNETES = "node.test/kubernetes:1"
"""The stand-in with Kubernetes: the NODE of `make kind-image`."""
CLUSTER_IMAGE = "node.test/kubernetes-node:1"
"""The node image with a network that uses the Node's pod CIDR, as kindnet does in kind."""
CONTAINERD_IMAGE = "node.test/containerd-node:1"
"""The same image with containerd for the kubelet, as in kind, and the network of the stand-in."""
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
PROGRAMS = ("kind", "kubectl", "kubeadm", "kubelet", "crictl", "etcd", *CONTROL_PLANE)
_SECONDS = 900

_PROGRAMS_DOCKERFILE = """\
FROM node.test/tools:1
COPY bin /usr/local/bin
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
_ETCD = """\
#!/bin/bash
# kubeadm gives flags of etcd 3.6; those of 3.5, which Debian has, have other names.
words=()
for word in "$@"; do
    case $word in
        --feature-gates=InitialCorruptCheck=true) word=--experimental-initial-corrupt-check=true ;;
        --watch-progress-notify-interval=*) word=--experimental-${word#--} ;;
    esac
    words+=("$word")
done
exec etcd-3.5 "${words[@]}"
"""
_KUBERNETES_DOCKERFILE = f"""\
FROM {STAND_IN}
COPY bin /usr/bin
COPY kubelet.service /etc/systemd/system/kubelet.service
COPY images /kind/images
COPY manifests /kind/manifests
COPY version /kind/version
RUN mkdir -p /etc/kubernetes/manifests && systemctl enable kubelet.service
"""
_NETWORK_DOCKERFILE = f"""\
FROM {IMAGE}
COPY kubenet.conflist.template /etc/pydockershim/
RUN rm /etc/cni/net.d/*.conflist \\
 && echo 'cni_conf_template = "/etc/pydockershim/kubenet.conflist.template"' >>/etc/pydockershim/config.toml
"""
_CONTAINERD_DOCKERFILE = f"""\
FROM {KUBERNETES}
COPY config.toml /etc/containerd/config.toml
COPY load-images.service /etc/systemd/system/
RUN systemctl disable docker.service docker.socket && systemctl enable containerd.service load-images.service
"""
_CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Where a host has no CAP_SYS_RESOURCE to give; the server finds out by itself.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""
_LOAD_IMAGES_UNIT = """\
[Unit]
Requires=containerd.service
After=containerd.service
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'for each in /kind/images/*.tar; do [ ! -e $$each ] || ctr -n k8s.io images import $$each; done'

[Install]
RequiredBy=kubelet.service
"""
_IMPORT = """\
set -eu
containerd >/var/log/containerd.log 2>&1 &
timeout 60 sh -c 'until ctr version >/dev/null 2>&1; do sleep 0.1; done'
for archive in /kind/images/*.tar; do
    ctr -n k8s.io images import --all-platforms --no-unpack --digests "$archive"
    rm "$archive"
done
kill $!
wait
"""
_CNI_MANIFEST = """\
# The network of pods is a file of the node.
apiVersion: v1
kind: ConfigMap
metadata: {name: network, namespace: kube-system}
"""
_STORAGE_MANIFEST = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: kubernetes.io/host-path
"""
_KUBELET_UNIT = """\
[Unit]
ConditionPathExists=/var/lib/kubelet/config.yaml

[Service]
Environment="BOOTSTRAP=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/bin/kubelet $BOOTSTRAP --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \\
    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1
Slice=kubelet.slice
KillMode=process

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A Docker of the host with CLUSTER_IMAGE, and everything needed to create clusters."""

    engine: Engine
    client: Path
    """Docker's command line client."""
    programs: Path
    """The directory of kind and Kubernetes."""
    references: Sequence[str]
    """Names of the images of Kubernetes in Docker."""


def prepare_cluster_image(
    engine: Engine,
    client: Path,
    *,
    prepared: Prepared,
    node: Node,
    programs: Path,
    tools: Path,
    scratch: Path,
    imported: bool = False,
) -> list[str]:
    """Build CLUSTER_IMAGE, and return the names of the images of Kubernetes, which Docker then has.

    The node has images as archives, or if `imported` in its containerd, like a node image of kind.
    """
    build_stand_in(engine.api, prepared=prepared, node=node, scratch=scratch)
    references = build_kubernetes(engine, client, programs=programs, tools=tools, scratch=scratch)
    if imported:
        import_images(engine, client)
    make_kind(engine, client, target="kind-image", programs=programs, wheels=prepared.wheels)
    build_cluster_image(engine, scratch=scratch)
    return references


def make_kind(engine: Engine, client: Path, *, target: str, programs: Path, wheels: Path) -> str:
    """Run `make kind-image` or `make kind-demo` on KUBERNETES as a user does, and return the output."""
    environ = host_environ(engine, programs=programs, client=client, home=new_home("user"))
    words = ["make", target, f"NODE={KUBERNETES}", f"BIN={programs}", f"ARGS=--wheels {wheels}"]
    return run(words, cwd=CHECKOUT, env=environ, timeout=_SECONDS)


def build_kubernetes(engine: Engine, client: Path, *, programs: Path, tools: Path, scratch: Path) -> list[str]:
    """Build KUBERNETES on STAND_IN with programs, the kubelet's unit, and images, whose names are returned."""
    missing = [name for name in PROGRAMS if not (programs / name).exists()]
    if missing:
        raise NodeError(f"{programs} lacks {', '.join(missing)}")
    api = engine.api
    with tools.open("rb") as archive:
        api.import_image_from_data(archive, repository="node.test/tools", tag="1")
    inside = scratch / "programs"
    _copy(programs, inside / "bin", names=["etcd", *CONTROL_PLANE])
    for name in ("iptables", "ip6tables"):
        for verb in ("", "-save", "-restore"):
            # Debian's alternatives, which are set when the package is installed, not when it is unpacked.
            (inside / "bin" / f"{name}{verb}").symlink_to("/usr/sbin/xtables-nft-multi")
    if _etcd_version(programs).startswith("3.5."):
        (inside / "bin/etcd").rename(inside / "bin/etcd-3.5")
        (inside / "bin/etcd").write_text(_ETCD)
        (inside / "bin/etcd").chmod(0o755)
    (inside / "Dockerfile").write_text(_PROGRAMS_DOCKERFILE)
    build_context(api, inside, tag="node.test/programs:1")
    context = scratch / "kubernetes"
    _copy(programs, context / "bin", names=["kubeadm", "kubelet", "kubectl", "crictl"])
    (context / "images").mkdir()
    version = run([programs / "kubeadm", "version", "-o", "short"], timeout=_SECONDS)
    (context / "version").write_text(version)
    references = _references(programs, version.strip())
    for reference in references:  # one image with all programs, under the name of each
        repository, _, tag = reference.rpartition(":")
        api.tag("node.test/programs:1", repository, tag)
    loaded = [name for name in references if "/coredns:" not in name]  # a stand-in of CoreDNS would run, and fail
    _save(engine, client, loaded, context / "images/kubernetes.tar")
    (context / "kubelet.service").write_text(_KUBELET_UNIT)
    (context / "manifests").mkdir()
    (context / "manifests/default-cni.yaml").write_text(_CNI_MANIFEST)
    (context / "manifests/default-storage.yaml").write_text(_STORAGE_MANIFEST)
    (context / "Dockerfile").write_text(_KUBERNETES_DOCKERFILE)
    build_context(api, context, tag=KUBERNETES)
    return references


def import_images(engine: Engine, client: Path) -> None:
    """Import the images of KUBERNETES into its containerd instead of archives, as `kind build node-image` does."""
    docker: list[str | Path] = [client, "--host", engine.url]
    words = ["--name=import", "--network=none", "--privileged", "--entrypoint=sh", KUBERNETES, "-c", _IMPORT]
    run([*docker, "run", *words], timeout=_SECONDS)
    entrypoint = run([*docker, "inspect", "--format={{json .Config.Entrypoint}}", KUBERNETES], timeout=_SECONDS)
    changes = [f"--change=ENTRYPOINT {entrypoint.strip()}", "--change=CMD []"]
    run([*docker, "commit", *changes, "import", KUBERNETES], timeout=_SECONDS)
    run([*docker, "rm", "import"], timeout=_SECONDS)


def build_cluster_image(engine: Engine, *, scratch: Path) -> None:
    """Build CLUSTER_IMAGE on the image of `make kind-image`."""
    context = scratch / "network"
    context.mkdir()
    shutil.copy(CHECKOUT / "cni_conf_examples/kubenet.conflist.template", context)
    (context / "Dockerfile").write_text(_NETWORK_DOCKERFILE)
    build_context(engine.api, context, tag=CLUSTER_IMAGE)


def build_containerd_image(engine: Engine, *, scratch: Path) -> None:
    """Build CONTAINERD_IMAGE, a node for comparisons, on KUBERNETES."""
    context = scratch / "containerd"
    context.mkdir()
    (context / "config.toml").write_text(_CONTAINERD)
    (context / "load-images.service").write_text(_LOAD_IMAGES_UNIT)
    (context / "Dockerfile").write_text(_CONTAINERD_DOCKERFILE)
    build_context(engine.api, context, tag=CONTAINERD_IMAGE)


def _copy(source: Path, target: Path, *, names: Sequence[str]) -> None:
    target.mkdir(parents=True)
    for name in names:
        shutil.copy(source / name, target)


def _references(programs: Path, version: str) -> list[str]:
    words = ["config", "images", "list", f"--kubernetes-version={version}"]
    listed = run([programs / "kubeadm", *words], timeout=_SECONDS).split()
    return [name for name in listed if "/pause:" not in name]


def _etcd_version(programs: Path) -> str:
    found = re.search(r"etcd Version: (\S+)", run([programs / "etcd", "--version"], timeout=_SECONDS))
    if found is None:
        raise NodeError(f"{programs / 'etcd'} prints no version")
    return found[1]


def _save(engine: Engine, client: Path, references: Sequence[str], target: Path) -> None:
    # With the command line client: the SDK saves one name at a time.
    run([client, "--host", engine.url, "save", "--output", target, *references], timeout=_SECONDS)


def host_environ(engine: Engine, *, programs: Path, client: Path, home: Path) -> dict[str, str]:
    """Return the environment of a user of kind with this Docker."""
    path = os.pathsep.join([str(programs), str(client.parent), os.environ["PATH"]])
    return {"PATH": path, "DOCKER_HOST": engine.url, "KUBECONFIG": str(home / "kubeconfig")}
