"""kubeadm on a node without a network add-on: `--pod-network-cidr` and `cni_conf_template` create the pod network.

The node image for clusters has the template, and no CNI configuration. From kind only the boot of a node is used: the
commands are from docs/kubeadm.md.
"""

import json
import os
import shlex
from collections.abc import Iterator

import pytest

from integration.kind.conftest import PROGRAMS_VARIABLE
from integration.kind.kubernetes import CLUSTER_IMAGE, Host
from integration.kind.node import KindNode, booted
from integration.node.commands import NodeError
from integration.node.images import BUSYBOX
from integration.waiting import wait_until

pytestmark = pytest.mark.skipif(PROGRAMS_VARIABLE not in os.environ, reason="needs BIN=directory with Kubernetes")

SOCKET = "unix:///run/cri-dockerd.sock"
RANGE, OF_NODE = "10.244.0.0/16", "10.244.0."
CONFLIST = "/etc/cni/net.d/zz-pydockershim.conflist"
PAGE = "hello from a pod"
KUBECONFIG = "--kubeconfig=/etc/kubernetes/admin.conf"
SECONDS = 300.0
READY = '.status.conditions[?(@.type=="Ready")].status'
# No registry has CoreDNS here; swap, cgroups and kernel modules are the host's.
SKIPPED = "--skip-phases=preflight,addon/coredns"
_PODS = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  tolerations: [{{operator: Exists}}]
  containers:
    - name: main
      image: {BUSYBOX}
      imagePullPolicy: Never
      command: [sh, -c, "mkdir /www; echo {PAGE} >/www/index.html; exec httpd -f -p 8080 -h /www"]
      ports: [{{containerPort: 8080, hostPort: 8081}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: client}}
spec:
  tolerations: [{{operator: Exists}}]
  terminationGracePeriodSeconds: 0
  containers:
    - {{name: main, image: {BUSYBOX}, imagePullPolicy: Never, command: [sleep, "3600"]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
"""


@pytest.fixture(scope="module")
def bare(host: Host) -> Iterator[KindNode]:
    """Boot a node with Kubernetes on which kubeadm has not run."""
    with booted(KindNode(host.engine, host.client, "bare", image=CLUSTER_IMAGE)) as made:
        yield made


def kubectl(bare: KindNode, *words: str, stdin: str = "") -> str:
    return bare.output("kubectl", KUBECONFIG, *words, stdin=stdin.encode())


def field(bare: KindNode, kind: str, name: str, path: str) -> str:
    return kubectl(bare, "get", kind, name, "-o", f"jsonpath={{{path}}}")


def keep_conntrack(bare: KindNode) -> None:
    """Keep kube-proxy from setting the kernel's number of connections, which a node in a container may not do."""
    proxy = ("--namespace=kube-system", "--output=yaml", "configmap", "kube-proxy")
    written = kubectl(bare, "get", *proxy)
    assert "maxPerCore: null" in written
    kubectl(bare, "replace", "-f", "-", stdin=written.replace("maxPerCore: null", "maxPerCore: 0"))
    kubectl(bare, "--namespace=kube-system", "delete", "pod", "--selector=k8s-app=kube-proxy")


def version(bare: KindNode) -> str:
    return bare.output("kubeadm", "version", "-o", "short").strip()


def leases(bare: KindNode) -> list[str]:
    listed = bare.output("sh", "-c", "ls /var/lib/cni/networks/kubenet 2>/dev/null || true").split()
    return [name for name in listed if name[0].isdigit()]


def has_page(bare: KindNode, url: str) -> bool:
    """Whether the node can fetch the page. The rules of a Service are set some time after its pods are Ready."""
    script = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=60).read().decode())"
    return PAGE in bare.run("python3", "-c", script).stdout.decode()


def pod_has_page(bare: KindNode, pod: str, url: str) -> bool:
    try:
        return PAGE in kubectl(bare, "exec", pod, "--", "timeout", "20", "wget", "-q", "-O", "-", url)
    except NodeError:
        return False


def use_network(bare: KindNode) -> None:
    """Once the pods are Ready, reach a pod from the node and from pods, by each of its addresses."""
    for pod in ("web", "client"):
        wait_until(lambda pod=pod: field(bare, "pod", pod, READY) == "True", SECONDS)  # type: ignore[misc]
    service = field(bare, "service", "web", ".spec.clusterIP")
    of_node = field(bare, "node", bare.name, ".status.addresses[0].address")
    wait_until(lambda: set(leases(bare)) == set(addresses(bare)), SECONDS)
    assert all(address.startswith(OF_NODE) for address in addresses(bare))
    for url in (f"http://{addresses(bare)[0]}:8080/", f"http://{of_node}:8081/", f"http://{service}/"):
        wait_until(lambda url=url: has_page(bare, url), SECONDS)  # type: ignore[misc]
        for pod in ("client", "web"):  # the second reaches itself
            wait_until(lambda pod=pod, url=url: pod_has_page(bare, pod, url), SECONDS)  # type: ignore[misc]


def addresses(bare: KindNode) -> list[str]:
    return [field(bare, "pod", pod, ".status.podIP") for pod in ("web", "client")]


def test_kubeadms_range_and_the_template_make_a_pod_network(bare: KindNode) -> None:
    assert bare.output("ls", "/etc/cni/net.d").split() == []
    patch = '{"failCgroupV1": false}'  # for hosts of the tests with cgroup v1; no effect on v2
    bare.output("sh", "-c", f"mkdir /patches && echo {shlex.quote(patch)} >/patches/kubeletconfiguration.json")

    bare.output(
        *("kubeadm", "init", f"--pod-network-cidr={RANGE}", f"--cri-socket={SOCKET}", SKIPPED),
        *("--patches=/patches", f"--kubernetes-version={version(bare)}"),
    )

    keep_conntrack(bare)
    wait_until(lambda: field(bare, "node", bare.name, READY) == "True", SECONDS)
    assert field(bare, "node", bare.name, ".spec.podCIDR") == f"{OF_NODE}0/24"
    written = json.loads(bare.output("cat", CONFLIST))
    assert written["plugins"][0]["ipam"]["ranges"] == [[{"subnet": f"{OF_NODE}0/24"}]]
    kubectl(bare, "apply", "-f", "-", stdin=_PODS)
    use_network(bare)

    bare.restart()
    wait_until(lambda: bare.run("kubectl", KUBECONFIG, "get", "nodes").returncode == 0, SECONDS)
    use_network(bare)

    bare.output("kubeadm", "reset", "--force", f"--cri-socket={SOCKET}")
    assert bare.output("docker", "ps", "--all", "--quiet", "--filter", "name=^/k8s_") == ""
    assert leases(bare) == []
    assert bare.output("sh", "-c", "ls /run/netns 2>/dev/null || true").split() == []
    assert bare.output("ls", "/var/lib/pydockershim/sandboxes").split() == []
