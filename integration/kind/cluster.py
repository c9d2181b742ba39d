"""A node image with Kubernetes in it, and clusters that the real kind makes of it.

Kubernetes comes from a directory of programs (`BIN=`): kind, kubectl, kubeadm, kubelet, crictl, etcd and the
control plane.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from integration.kind.image import CHECKOUT, NODE_IMAGE, build_context
from integration.node.commands import NodeError, run
from integration.node.engine import Engine

CLUSTER_IMAGE = "node.test/kubernetes-node:1"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
PROGRAMS = ("kind", "kubectl", "kubeadm", "kubelet", "crictl", "etcd", *CONTROL_PLANE)
_SECONDS = 900
_SHOWN_LINES = 100
"""kubeadm ends with the addresses of its functions; the reason stands above them."""

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
_NODE_DOCKERFILE = f"""\
FROM {NODE_IMAGE}
COPY bin /usr/bin
COPY kubelet.service /etc/systemd/system/kubelet.service
COPY kubenet.conflist.template /etc/pydockershim/
COPY images /kind/images
RUN rm /etc/cni/net.d/*.conflist \\
 && echo 'cni_conf_template = "/etc/pydockershim/kubenet.conflist.template"' >>/etc/pydockershim/config.toml \\
 && mkdir -p /etc/kubernetes/manifests && systemctl enable kubelet.service
ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]
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
class Cluster:
    """A cluster, and the programs to use it with."""

    name: str
    engine: Engine
    environ: dict[str, str]

    def run(self, *words: str, stdin: bytes | None = None) -> str:
        """Run a program of the host, such as kind or kubectl, and return its output; NodeError when it fails."""
        done = subprocess.run(
            words, input=stdin, capture_output=True, check=False, timeout=_SECONDS, env={**os.environ, **self.environ}
        )
        said = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            everything = "\n".join([said, done.stderr.decode(errors="replace")]).splitlines()
            raise NodeError(
                "\n".join([f"{' '.join(words)}: exit status {done.returncode}", *everything[-_SHOWN_LINES:]])
            )
        return said

    def kubectl(self, *words: str, stdin: bytes | None = None) -> str:
        """Run kubectl."""
        return self.run("kubectl", *words, stdin=stdin)

    def nodes(self) -> list[str]:
        """Return the names of the node containers."""
        return self.run("kind", "get", "nodes", "--name", self.name).split()

    def diagnosis(self) -> str:
        """Return what shows why a cluster is not as it should be."""
        script = "docker ps --all; for c in $(docker ps -aq --filter name=k8s_[ek]); do docker logs --tail 15 $c; done"
        kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf get pods,endpointslices -A -o wide"
        words = ["sh", "-c", f"({script}; {kubectl}) 2>&1 || true"]
        return "\n".join(self.run("docker", "exec", node, *words) for node in self.nodes())

    def connect_nodes(self) -> None:
        """Set the routes between the pods of the nodes, which is the work of a network add-on."""
        template = "{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[0].address}{'\\n'}{end}"
        listed = self.kubectl("get", "nodes", "-o", f"jsonpath={template}")
        rows = [line.split() for line in listed.splitlines()]
        for node, _, _ in rows:
            for other, pods, address in rows:
                if other != node:
                    self.run("docker", "exec", node, "ip", "route", "replace", pods, "via", address)


def build_cluster_image(engine: Engine, client: Path, *, programs: Path, tools: Path, scratch: Path) -> None:
    """Build CLUSTER_IMAGE on NODE_IMAGE: programs, the unit of the kubelet, and images of the control plane."""
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
            # Debian's alternatives, which are chosen when the package is installed and not when it is unpacked.
            (inside / "bin" / f"{name}{verb}").symlink_to("/usr/sbin/xtables-nft-multi")
    if etcd_tag(programs).startswith("3.5."):
        (inside / "bin/etcd").rename(inside / "bin/etcd-3.5")
        (inside / "bin/etcd").write_text(_ETCD)
        (inside / "bin/etcd").chmod(0o755)
    (inside / "Dockerfile").write_text(_PROGRAMS_DOCKERFILE)
    build_context(api, inside, tag="node.test/programs:1")
    context = scratch / "kubernetes-node"
    _copy(programs, context / "bin", names=["kubeadm", "kubelet", "kubectl", "crictl"])
    (context / "images").mkdir()
    _save(engine, client, _references(programs), context / "images/kubernetes.tar")
    (context / "kubelet.service").write_text(_KUBELET_UNIT)
    shutil.copy(CHECKOUT / "cni_conf_examples/kubenet.conflist.template", context)
    (context / "Dockerfile").write_text(_NODE_DOCKERFILE)
    build_context(api, context, tag=CLUSTER_IMAGE)


def _copy(source: Path, target: Path, *, names: Sequence[str]) -> None:
    target.mkdir(parents=True)
    for name in names:
        shutil.copy(source / name, target)


def _references(programs: Path) -> list[str]:
    kubeadm = programs / "kubeadm"
    version = run([kubeadm, "version", "-o", "short"], timeout=_SECONDS).strip()
    listed = run([kubeadm, "config", "images", "list", f"--kubernetes-version={version}"], timeout=_SECONDS).split()
    etcd = f"registry.k8s.io/etcd:{etcd_tag(programs)}"
    return [etcd, *(name for name in listed if name.rpartition("/")[2].partition(":")[0] in CONTROL_PLANE)]


def etcd_tag(programs: Path) -> str:
    """Return the tag of the etcd that is there: kubeadm chooses its flags by it."""
    found = re.search(r"etcd Version: (\S+)", run([programs / "etcd", "--version"], timeout=_SECONDS))
    if found is None:
        raise NodeError(f"{programs / 'etcd'} does not say its version")
    return f"{found[1]}-0"


def _save(engine: Engine, client: Path, references: Sequence[str], target: Path) -> None:
    """Save one image with all programs under the name of each."""
    for reference in references:
        repository, _, tag = reference.rpartition(":")
        engine.api.tag("node.test/programs:1", repository, tag)
    # By the command line client: the SDK saves one name at a time.
    run([client, "--host", engine.url, "save", "--output", target, *references], timeout=_SECONDS)


@contextmanager
def cluster(engine: Engine, *, programs: Path, client: Path, config: Path, name: str, home: Path) -> Iterator[Cluster]:
    """Make a cluster by `kind create cluster`, and delete it at the end."""
    home.mkdir(parents=True)
    settings = yaml.safe_load(config.read_text())
    settings["networking"] = {"disableDefaultCNI": True}
    # There is no image of CoreDNS here, and no route to a registry.
    settings["kubeadmConfigPatches"].append("kind: InitConfiguration\nskipPhases: [preflight, addon/coredns]\n")
    etcd = f"kind: ClusterConfiguration\netcd:\n  local:\n    imageTag: {etcd_tag(programs)}\n"
    settings["kubeadmConfigPatches"].append(etcd)
    (home / "cluster.yaml").write_text(yaml.safe_dump(settings))
    path = os.pathsep.join([str(programs), str(client.parent), os.environ["PATH"]])
    environ = {"PATH": path, "DOCKER_HOST": engine.url, "KUBECONFIG": str(home / "kubeconfig")}
    made = Cluster(name, engine, environ)
    create = ["kind", "create", "cluster", "--name", name, "--image", CLUSTER_IMAGE, "--retain", "--wait", "5m"]
    try:
        made.run(*create, "--config", str(home / "cluster.yaml"))
        made.connect_nodes()
        yield made
    except BaseException as error:
        error.add_note(made.diagnosis())
        raise
    finally:
        made.run("kind", "delete", "cluster", "--name", name)
