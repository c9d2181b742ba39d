"""Clusters that the real kind creates from a node image."""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from integration.kind.image import CHECKOUT
from integration.kind.kubernetes import CLUSTER_IMAGE, CONTAINERD_IMAGE, Host, host_environ
from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.node.isolation import new_home

CREATE = "kind create cluster"
"""The step that spans all others."""
_NAME = "test"
_SECONDS = 900
_SHOWN_LINES = 100
"""kubeadm's errors end with the addresses of its functions; the reason stands above them."""
# Given to a shell as its input: as an argument, pgrep would find the pattern on the shell's command line.
_MEMORY = b"""\
for p in $(pgrep -f 'pydockershim|shim.logs|^/usr/s?bin/dockerd|^/usr/bin/containerd'); do
    size=$(sed -n 's/^Pss: *\\([0-9]*\\) kB/\\1/p' /proc/$p/smaps_rollup) || continue
    echo "${size:-0} $(tr '\\0' ' ' </proc/$p/cmdline | cut -d ' ' -f 1-3 | sed 's/-namespace.*//')"
done
"""
_SERVER = "server, log process, helper"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and the programs to use it with."""

    name: str
    engine: Engine
    environ: dict[str, str]
    steps: dict[str, float] = field(default_factory=dict)
    """Seconds of each step that `kind create cluster` prints, by its title."""

    def run(self, *words: str, stdin: bytes | None = None) -> str:
        """Run a program of the host, such as kind or kubectl, and return its output; raise NodeError if it fails."""
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
        """Return output that helps to find why a cluster is broken."""
        script = "docker ps --all; for c in $(docker ps -aq --filter name=k8s_[ek]); do docker logs --tail 15 $c; done"
        kubectl = "kubectl --kubeconfig /etc/kubernetes/admin.conf get pods,endpointslices -A -o wide"
        kubelet = "journalctl --no-pager --output=cat --lines=30 --unit=kubelet"
        words = ["sh", "-c", f"({script}; {kubelet}; {kubectl}) 2>&1 || true"]
        return "\n".join(self.run("docker", "exec", node, *words) for node in self.nodes())

    def wait_kube_proxy(self) -> None:
        """Wait for the pods of kube-proxy, which are created after a node is Ready."""
        self.kubectl("rollout", "status", "daemonset/kube-proxy", "-n", "kube-system", "--timeout=120s")

    def memory(self, node: str) -> dict[str, float]:
        """Return the memory of a node's runtime: MB of PSS by program."""
        sums: dict[str, float] = {}
        for line in self.run("docker", "exec", "-i", node, "sh", stdin=_MEMORY).splitlines():
            kilobytes, _, command = line.partition(" ")
            ours = "pydockershim" in command or "shim.logs" in command
            name = _SERVER if ours else command.split()[0].rpartition("/")[2]
            sums[name] = sums.get(name, 0) + int(kilobytes) * 1024 / 1e6
        return sums

    def create(self, *options: str) -> None:
        """Run `kind create cluster`, and fill `steps`."""
        words = ["kind", "create", "cluster", "--name", self.name, *options]
        said: list[str] = []
        environ = {**os.environ, **self.environ}
        with subprocess.Popen(words, stderr=subprocess.PIPE, encoding="utf-8", env=environ) as process:
            limit = threading.Timer(_SECONDS, process.kill)
            limit.start()
            try:
                self._follow(process.stderr or (), said)
            finally:
                limit.cancel()
        if process.returncode != 0:
            raise NodeError("\n".join([f"{' '.join(words)}: exit status {process.returncode}", *said[-_SHOWN_LINES:]]))

    def _follow(self, lines: Iterable[str], said: list[str]) -> None:
        title, began = "", 0.0
        for line in lines:
            said.append(line.rstrip())
            if title and line.startswith((" \N{CHECK MARK}", " \N{BALLOT X}")):
                self.steps[title] = time.monotonic() - began
            if line.startswith(" \N{BULLET}"):
                title, began = step_title(line), time.monotonic()

    def connect_nodes(self) -> None:
        """Set the routes between the pods of different nodes, which is the task of a network add-on."""
        items = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        for node in items:
            for other in items:
                if other is not node:
                    self._add_routes(node["metadata"]["name"], other)

    def _add_routes(self, node: str, other: dict[str, Any]) -> None:
        addresses = [each["address"] for each in other["status"]["addresses"] if each["type"] == "InternalIP"]
        for pods in other["spec"]["podCIDRs"]:
            gateway = next(address for address in addresses if (":" in address) == (":" in pods))
            self.run("docker", "exec", node, "ip", "route", "replace", pods, "via", gateway)


def step_title(line: str) -> str:
    """Return the title of a step that kind announces, without signs, numbers and names that vary."""
    return " ".join(re.sub(r"\(.*\)|\d\S*|[^ -~]|\.\.\.", " ", line).split())


@contextmanager
def cluster(
    host: Host,
    config: str,
    *,
    image: str = CLUSTER_IMAGE,
    family: str = "ipv4",
    mounts: Sequence[dict[str, str]] = (),
    patches: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Create a cluster with `kind create cluster`, print the time, and delete the cluster at the end.

    `config` is a file of packaging/kind, `mounts` are extraMounts of the first node, `patches` are added to kubeadm's
    configuration.
    """
    home = new_home("cluster")
    home.mkdir(parents=True)
    settings = yaml.safe_load((CHECKOUT / "packaging/kind" / config).read_text())
    settings["nodes"][0]["extraMounts"] = list(mounts)
    settings["kubeadmConfigPatches"].extend(patches)
    settings["networking"] = {"disableDefaultCNI": True, "ipFamily": family}
    if image == CONTAINERD_IMAGE:
        settings["kubeadmConfigPatches"] = [
            each for each in settings["kubeadmConfigPatches"] if "criSocket" not in each
        ]
    # No image of CoreDNS and no route to a registry exist here.
    settings["kubeadmConfigPatches"].append("kind: InitConfiguration\nskipPhases: [preflight, addon/coredns]\n")
    (home / "cluster.yaml").write_text(yaml.safe_dump(settings))
    environ = host_environ(host.engine, programs=host.programs, client=host.client, home=home)
    made = Cluster(_NAME, host.engine, environ)
    began = time.monotonic()
    try:
        made.create("--image", image, "--retain", "--wait", "5m", "--config", str(home / "cluster.yaml"))
        made.steps[CREATE] = time.monotonic() - began
        print(f"{config}, {image}, {family}: Ready after {made.steps[CREATE]:.1f} s")
        made.connect_nodes()
        yield made
    except BaseException as error:
        error.add_note(made.diagnosis())
        raise
    finally:
        made.run("kind", "delete", "cluster", "--name", _NAME)
