"""Clusters that the real kind makes of the node image: `make test-kind BIN=directory`, see docs/kind.md."""

import io
import json
import os
import re
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.kind.cluster import Cluster, build_cluster_image, cluster
from integration.kind.conftest import PROGRAMS_VARIABLE, prepared
from integration.kind.image import CHECKOUT, build, build_context
from integration.node.commands import NodeError
from integration.node.engine import Engine, program
from integration.node.isolation import Node, new_home
from integration.waiting import wait_until

pytestmark = pytest.mark.skipif(PROGRAMS_VARIABLE not in os.environ, reason="needs BIN=directory with Kubernetes")

APP = "node.test/app:1"
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


@pytest.fixture(scope="module")
def outer(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Run the Docker of the host, with the image of the nodes."""
    engine = make_engine(node, "28")
    engine.start()
    try:
        scratch = tmp_path_factory.mktemp("cluster-image")
        build(engine.api, prepared=prepared(), node=node, scratch=scratch)
        programs, tools = map(Path, os.environ[PROGRAMS_VARIABLE].split(":"))
        build_cluster_image(
            engine, program("docker", node.stable.path), programs=programs, tools=tools, scratch=scratch
        )
        yield engine
    finally:
        engine.close()


@contextmanager
def created(outer: Engine, node: Node, config: str) -> Iterator[Cluster]:
    programs = Path(os.environ[PROGRAMS_VARIABLE].split(":")[0])
    began = time.monotonic()
    with cluster(
        outer,
        programs=programs,
        client=program("docker", node.stable.path),
        config=CHECKOUT / "packaging/kind" / config,
        name="test",
        home=new_home("cluster"),
    ) as made:
        print(f"{config}: Ready after {time.monotonic() - began:.1f} s")
        yield made


def ready_pods(made: Cluster, number: int) -> bool:
    listed = json.loads(made.kubectl("get", "pods", "-l", "app=app", "-o", "json"))["items"]
    conditions = [(each["type"], each["status"]) for pod in listed for each in pod["status"].get("conditions", [])]
    return len(listed) == number == conditions.count(("Ready", "True"))


def leases(made: Cluster, node: str) -> int:
    script = "ls /var/lib/cni/networks/kubenet | grep -c '^[0-9]' || true"
    return int(made.run("docker", "exec", node, "sh", "-c", script))


def pods_with_address(made: Cluster, node: str) -> int:
    """Return how many pods of a node have an address of their own."""
    listed = made.run("docker", "exec", node, "docker", "ps", "-q", "--filter", "name=^/k8s_POD_")
    modes = made.run("docker", "exec", node, "docker", "inspect", "-f", "{{.HostConfig.NetworkMode}}", *listed.split())
    return modes.split().count("none")


@pytest.mark.parametrize(("config", "number"), [("cluster.yaml", 1), ("cluster-three-nodes.yaml", 3)])
def test_the_whole_way(outer: Engine, node: Node, tmp_path: Path, config: str, number: int) -> None:
    with created(outer, node, config) as made:
        nodes = made.nodes()
        assert len(nodes) == number
        assert made.kubectl("get", "nodes", "--no-headers").split().count("Ready") == number
        load_app(made, node, tmp_path)
        made.kubectl("apply", "-f", "-", stdin=_SPREAD.encode())
        wait_until(lambda: ready_pods(made, number), SECONDS)
        use_pods(made, nodes)
        for each in nodes:
            began = time.monotonic()
            made.run("docker", "restart", each)
            wait_until(lambda: everything_runs(made, number), SECONDS)
            print(f"docker restart {each}: all pods Ready after {time.monotonic() - began:.1f} s")
        made.connect_nodes()
        for each in nodes:
            wait_until(lambda each=each: leases(made, each) == pods_with_address(made, each), SECONDS)  # type: ignore[misc]
        show_memory(made, nodes)
        made.run("kind", "export", "logs", str(tmp_path / "logs"), "--name", made.name)
        for each in nodes:
            journal = (tmp_path / "logs" / each / "journal.log").read_text()
            assert "pydockershim[" in journal
            assert "dockerd[" in journal
    assert outer.api.containers(all=True) == []
    assert outer.api.volumes()["Volumes"] in (None, [])


def load_app(made: Cluster, node: Node, tmp_path: Path) -> None:
    context = tmp_path / "app"
    context.mkdir()
    (context / "busybox").write_bytes(node.busybox.read_bytes())
    (context / "busybox").chmod(0o755)
    (context / "index.html").write_text(f"{PAGE}\n")
    (context / "Dockerfile").write_text(_APP)
    build_context(made.engine.api, context, tag=APP)
    made.run("kind", "load", "docker-image", APP, "--name", made.name)
    for each in made.nodes():
        made.run("docker", "exec", each, "docker", "image", "inspect", APP)


def use_pods(made: Cluster, nodes: list[str]) -> None:
    address = made.kubectl("get", "service", "app", "-o", "jsonpath={.spec.clusterIP}")
    pods = made.kubectl("get", "pods", "-l", "app=app", "-o", "name").split()
    for each in nodes:  # the Service and the host port, from each node
        wait_until(lambda each=each: answers(made, each, f"http://{address}/"), SECONDS)  # type: ignore[misc]
        of_node = made.engine.api.inspect_container(each)["NetworkSettings"]["Networks"]["kind"]["IPAddress"]
        with urllib.request.urlopen(f"http://{of_node}:8081/", timeout=60) as answer:
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


def answers(made: Cluster, node: str, url: str) -> bool:
    """Whether the page can be had in a node. The rules of a Service come some time after its pods are Ready."""
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


def everything_runs(made: Cluster, number: int) -> bool:
    """Whether all nodes and pods are Ready again. The API server itself may be away."""
    try:
        statuses = made.kubectl("get", "nodes", "--no-headers").split()
        return statuses.count("Ready") == number and ready_pods(made, number)
    except NodeError:
        return False


def show_memory(made: Cluster, nodes: list[str]) -> None:
    for each in nodes:
        script = "for p in $(pgrep -f 'pydockershim|shim.logs'); do grep ^Pss: /proc/$p/smaps_rollup; done"
        print(each, made.run("docker", "exec", each, "sh", "-c", script).split())
