"""Pods, an API server in front of them, and the kubectl that talks to it."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.conftest import Images, Served
from integration.node.isolation import Node
from integration.pods.conftest import kubelet
from integration.pods.kubelet import Kubelet, Pod
from integration.streaming.api_server import ApiServer

__all__ = ("SECONDS", "Kubectl", "api_server", "kubectl", "kubelet", "pod")

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One kubectl, against one API server."""

    program: Path
    server: ApiServer
    home: Path

    def command(self, *arguments: str) -> list[str]:
        """Give the command line."""
        return [str(self.program), f"--server={self.server.url}", f"--cache-dir={self.home}/cache", *arguments]

    def environ(self) -> dict[str, str]:
        """Give the environment: no configuration of the user's."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": f"{self.home}/none"}

    def run(
        self, *arguments: str, stdin: bytes | None = None, timeout: float = SECONDS
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run it to its end; without `stdin` it reads an empty one."""
        return subprocess.run(
            self.command(*arguments),
            input=stdin or b"",
            capture_output=True,
            timeout=timeout,
            check=False,
            env=self.environ(),
        )

    def begin(
        self, *arguments: str, stdin: int = subprocess.PIPE, stdout: int = subprocess.PIPE
    ) -> "subprocess.Popen[bytes]":
        """Start it, with pipes unless the caller has others."""
        return subprocess.Popen(
            self.command(*arguments),
            bufsize=0,  # `communicate` would not know of what a buffer of Python's holds
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environ(),
        )


@pytest.fixture(scope="module")
def api_server(served: Served) -> Iterator[ApiServer]:
    """Run the API server of the shared server's pods."""
    made = ApiServer(served.cri)
    yield made
    made.close()


@pytest.fixture(params=["spdy", "websocket"])
def kubectl(request: pytest.FixtureRequest, node: Node, api_server: ApiServer, tmp_path: Path) -> Kubectl:
    """Give each kubectl: 1.20, which speaks SPDY, and a newer one, which tries WebSocket first."""
    program = node.kubectl if request.param == "spdy" else node.newer_kubectl
    if program is None:
        pytest.skip(node.newer_kubectl_missing)
    return Kubectl(program, api_server, tmp_path)


@pytest.fixture(scope="module")
def pod(served: Served, images: Images, api_server: ApiServer) -> Iterator[Pod]:
    """One pod with one container that sleeps, known to the API server as `box`."""
    made = Kubelet(served.cri, images.busybox)
    pod = made.pod()
    made.started(pod)
    api_server.pods["box"] = pod.id
    yield pod
    made.remove_all()
