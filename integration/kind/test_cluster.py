"""Clusters that the real kind creates from the node image: `make test-kind BIN=directory`, see docs/kind.md."""

import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from integration.conformance import results
from integration.kind.cluster import Cluster, cluster
from integration.kind.conftest import PROGRAMS_VARIABLE, prepared
from integration.kind.image import build_context, containerd_store
from integration.kind.kubernetes import (
    CLUSTER_IMAGE,
    CONTAINERD_IMAGE,
    Host,
    build_containerd_image,
    make_kind,
)
from integration.kind.scenarios import PATCHES, run_in_node
from integration.node.commands import NodeError
from integration.node.isolation import Node, new_home
from integration.waiting import wait_until

pytestmark = pytest.mark.skipif(PROGRAMS_VARIABLE not in os.environ, reason="needs BIN=directory with Kubernetes")

APP = "node.test/app:1"
ARCHIVED = "node.test/archived:1"
PAGE = "hello from a pod on Docker"
SECONDS = 120.0
_APP = """\
FROM scratch
COPY busybox /busybox
COPY index.html /www/index.html
ENTRYPOINT ["/busybox", "httpd", "-f", "-v", "-p", "8080", "-h", "/www"]
"""
_SPREAD = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: app}
spec:
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
        - name: app
          image: node.test/app:1
          imagePullPolicy: Never
          ports: [{containerPort: 8080, hostPort: 8081}]
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec:
  selector: {app: app}
  ports: [{port: 80, targetPort: 8080}]
"""


def nothing_is_left(host: Host) -> None:
    assert host.engine.api.containers(all=True) == []
    assert host.engine.api.volumes()["Volumes"] in (None, [])


def ready_pods(made: Cluster, number: int) -> bool:
    listed = json.loads(made.kubectl("get", "pods", "-l", "app=app", "-o", "json"))["items"]
    conditions = [(each["type"], each["status"]) for pod in listed for each in pod["status"].get("conditions", [])]
    return len(listed) == number == conditions.count(("Ready", "True"))


def leases(made: Cluster, node: str) -> int:
    script = "ls /var/lib/cni/networks/kubenet | grep -c -v '^l' || true"  # neither lock nor last_reserved_ip
    return int(made.run("docker", "exec", node, "sh", "-c", script))


def pods_with_address(made: Cluster, node: str) -> int:
    """Return the number of a node's pods with their own address."""
    listed = made.run("docker", "exec", node, "docker", "ps", "-q", "--filter", "name=^/k8s_POD_")
    modes = made.run("docker", "exec", node, "docker", "inspect", "-f", "{{.HostConfig.NetworkMode}}", *listed.split())
    return modes.split().count("none")


@pytest.mark.parametrize(
    ("config", "number", "family"),
    [
        ("cluster.yaml", 1, "ipv4"),
        ("cluster-three-nodes.yaml", 3, "ipv4"),
        ("cluster-three-nodes.yaml", 3, "dual"),
        ("cluster.yaml", 1, "ipv6"),
    ],
)
def test_pods_work_and_survive_restarts_of_nodes(
    host: Host, node: Node, tmp_path: Path, config: str, number: int, family: str
) -> None:
    with cluster(host, config, family=family) as made:
        nodes = made.nodes()
        assert len(nodes) == number
        assert made.kubectl("get", "nodes", "--no-headers").split().count("Ready") == number
        load_app(made, node, tmp_path)
        made.kubectl("apply", "-f", "-", stdin=_SPREAD.encode())
        wait_until(lambda: ready_pods(made, number), SECONDS)
        use_pods(made, nodes)
        for each in nodes:
            restart(made, each, number, f"docker restart {each}", partial(made.run, "docker", "restart", each))
        if number == 1:  # several get addresses in the order of their start, which kind's own entrypoint corrects
            restart(made, nodes[0], number, "restart of the host's Docker", host.engine.restart)
        made.connect_nodes()
        addresses = 2 if family == "dual" else 1
        for each in nodes:
            wait_until(lambda each=each: leases(made, each) == addresses * pods_with_address(made, each), SECONDS)  # type: ignore[misc]
        use_pods(made, nodes)
        show_memory(made, nodes)
        made.run("kind", "export", "logs", str(tmp_path / "logs"), "--name", made.name)
        for each in nodes:
            journal = (tmp_path / "logs" / each / "journal.log").read_text()
            assert "pydockershim[" in journal
            assert "dockerd[" in journal
    nothing_is_left(host)


def test_the_demo_runs_and_cleans_up(host: Host) -> None:
    said = make_kind(host.engine, host.client, target="kind-demo", programs=host.programs, wheels=prepared().wheels)
    print(said)
    assert "hello from a pod on Docker, in kind" in said
    nothing_is_left(host)


@pytest.mark.parametrize("image", [CLUSTER_IMAGE, CONTAINERD_IMAGE])
def test_memory_compared_to_a_node_with_containerd(host: Host, tmp_path: Path, image: str) -> None:
    if image == CONTAINERD_IMAGE:
        build_containerd_image(host.engine, scratch=tmp_path)
    with cluster(host, "cluster.yaml", image=image) as made:
        runtime = made.kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}")
        assert runtime.startswith("docker://" if image == CLUSTER_IMAGE else "containerd://")
        made.wait_kube_proxy()
        show_memory(made, made.nodes())
    nothing_is_left(host)


@pytest.mark.parametrize("store", ["overlay2", "containerd"])
def test_the_scenarios_of_a_kubelet_pass(
    host: Host, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    home = new_home("scenarios")
    home.mkdir()
    # Not shared with the host: Docker would then share /var as well, and the node's mounts there would outlive the
    # node.
    mounts = [{"hostPath": str(home), "containerPath": str(home)}]
    if store == "containerd":
        (tmp_path / "daemon.json").write_text(containerd_store())
        mounts.append({"hostPath": f"{tmp_path}/daemon.json", "containerPath": "/etc/docker/daemon.json"})
    with cluster(host, "cluster.yaml", mounts=mounts, patches=PATCHES) as made:
        note = request.config.getoption("--note")
        run = run_in_node(made, made.nodes()[0], programs=host.programs, home=home, note=note)
    if directory := request.config.getoption("--results"):
        directory.mkdir(parents=True, exist_ok=True)
        results.write(directory / results.file_name(run), [run])
    print(*(f"{each.state:8} {each.name} {each.reason}".rstrip() for each in run.cases), sep="\n")
    assert {each.name: each.reason for each in run.cases if each.state == "failed"} == {}
    nothing_is_left(host)


def restart(made: Cluster, node: str, number: int, what: str, action: Callable[[], object]) -> None:
    """Restart a node container, and wait until each container of its pods is replaced by a ready container."""
    before = wait_until(lambda: ready_containers(made, node), SECONDS)
    began = time.monotonic()
    action()
    wait_until(lambda: everything_runs(made, number, node, before), SECONDS)
    print(f"{what}: all {len(before)} containers new and ready after {time.monotonic() - began:.1f} s")


def containers(made: Cluster, node: str) -> dict[str, str | None]:
    """Return the id of each container of a node's pods, None for containers that are not ready."""
    listed = json.loads(made.kubectl("get", "pods", "-A", "-o", "json", f"--field-selector=spec.nodeName={node}"))
    return {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{each['name']}": each["containerID"]
        if each["ready"]
        else None
        for pod in listed["items"]
        for each in pod["status"].get("containerStatuses", [])
    }


def ready_containers(made: Cluster, node: str) -> dict[str, str | None]:
    """Return a node's containers if all are ready, else nothing; the API lags behind the node."""
    found = containers(made, node)
    return {} if None in found.values() else found


def are_replaced(now: dict[str, str | None], before: dict[str, str | None]) -> bool:
    """Whether all containers exist and are ready with new ids; the API shows the old ids until the kubelet starts."""
    return now.keys() == before.keys() and all(now[each] not in (None, before[each]) for each in before)


def load_app(made: Cluster, node: Node, tmp_path: Path) -> None:
    context = tmp_path / "app"
    context.mkdir()
    (context / "busybox").write_bytes(node.busybox.read_bytes())
    (context / "busybox").chmod(0o755)
    (context / "index.html").write_text(f"{PAGE}\n")
    (context / "Dockerfile").write_text(_APP)
    build_context(made.engine.api, context, tag=APP)
    made.run("kind", "load", "docker-image", APP, "--name", made.name)
    archive = tmp_path / "archive.tar"
    made.run("docker", "tag", APP, ARCHIVED)
    made.run("docker", "save", "--output", str(archive), ARCHIVED)
    made.run("kind", "load", "image-archive", str(archive), "--name", made.name)
    for each in made.nodes():
        made.run("docker", "exec", each, "docker", "image", "inspect", APP, ARCHIVED)


def use_pods(made: Cluster, nodes: list[str]) -> None:
    address = made.kubectl("get", "service", "app", "-o", "jsonpath={.spec.clusterIP}")
    pods = made.kubectl("get", "pods", "-l", "app=app", "-o", "name").split()
    service = f"http://{in_url(address)}/"
    for each in nodes:  # the Service and the host port, from each node
        wait_until(lambda each=each: answers(made, each, service), SECONDS)  # type: ignore[misc]
        ends = made.engine.api.inspect_container(each)["NetworkSettings"]["Networks"]["kind"]
        of_node = ends["GlobalIPv6Address" if ":" in address else "IPAddress"]
        with urllib.request.urlopen(f"http://{in_url(of_node)}:8081/", timeout=60) as answer:
            assert PAGE in answer.read().decode(), each
    for pod in pods:
        assert made.kubectl("exec", pod, "--", "/busybox", "echo", "executed") == "executed\n"
        for _ in range(len(nodes) * 4):  # the Service from each pod, whichever pod answers
            assert PAGE in made.kubectl("exec", pod, "--", "/busybox", "wget", "-q", "-O", "-", f"http://{address}/")
        assert "response:200" in made.kubectl("logs", pod)
    stdin = b"from standard input\n"
    assert made.kubectl("exec", "-i", pods[0], "--", "/busybox", "cat", stdin=stdin).encode() == stdin
    forward(made, pods[0])
    stream = io.BytesIO(made.kubectl("exec", pods[0], "--", "/busybox", "tar", "-cf", "-", "www/index.html").encode())
    with tarfile.open(fileobj=stream) as archive:
        assert archive.getnames() == ["www/index.html"]


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def answers(made: Cluster, node: str, url: str) -> bool:
    """Whether a node can fetch the page. The rules of a Service are set some time after its pods are Ready."""
    script = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=60).read().decode())"
    try:
        return PAGE in made.run("docker", "exec", node, "python3", "-c", script)
    except NodeError:
        return False


def forward(made: Cluster, pod: str) -> None:
    words = ["kubectl", "port-forward", pod, ":8080"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **made.environ}) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            with socket.create_connection(("127.0.0.1", int(found[1])), timeout=60) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert PAGE.encode() in connection.makefile("rb").read()
        finally:
            process.terminate()


def everything_runs(made: Cluster, number: int, node: str, before: dict[str, str | None]) -> bool:
    """Whether all nodes and pods are Ready again, with new containers on a node.

    The API server may be down meanwhile.
    """
    try:
        statuses = made.kubectl("get", "nodes", "--no-headers").split()
        replaced = are_replaced(containers(made, node), before)
        return replaced and statuses.count("Ready") == number and ready_pods(made, number)
    except NodeError:
        return False


def show_memory(made: Cluster, nodes: list[str]) -> None:
    """Print the memory of each node's runtime, in MB of PSS."""
    for each in nodes:
        print(each, ", ".join(f"{name} {size:.0f} MB" for name, size in sorted(made.memory(each).items())))
