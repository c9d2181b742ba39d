"""Fixtures: pods, an API server in front of them, and kubectl."""

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
    """A version of kubectl, configured for an API server."""

    program: Path
    server: ApiServer
    home: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return [str(self.program), f"--server={self.server.url}", f"--cache-dir={self.home}/cache", *arguments]

    def environ(self) -> dict[str, str]:
        """Return an environment without the user's configuration."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": f"{self.home}/none"}

    def run(
        self, *arguments: str, stdin: bytes | None = None, timeout: float = SECONDS
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run kubectl to its end; without `stdin` its input is empty."""
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
        """Start kubectl, with pipes unless the caller gives other files."""
        return subprocess.Popen(
            self.command(*arguments),
            bufsize=0,  # `communicate` would miss data in Python's buffer
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=self.environ(),
        )


@pytest.fixture(scope="module")
def api_server(served: Served) -> Iterator[ApiServer]:
    """Run an API server for the shared server's pods."""
    made = ApiServer(served.cri)
    yield made
    made.close()


@pytest.fixture(params=["spdy", "websocket"])
def kubectl(request: pytest.FixtureRequest, node: Node, api_server: ApiServer, tmp_path: Path) -> Kubectl:
    """Provide each kubectl: 1.20, which speaks SPDY, and a newer version, which tries WebSocket first."""
    program = node.kubectl if request.param == "spdy" else node.newer_kubectl
    if program is None:
        pytest.skip(node.newer_kubectl_missing)
    return Kubectl(program, api_server, tmp_path)


@pytest.fixture(scope="module")
def pod(served: Served, images: Images, api_server: ApiServer) -> Iterator[Pod]:
    """Run a pod with a sleeping container, which the API server calls `box`."""
    made = Kubelet(served.cri, images.busybox)
    pod = made.pod()
    made.started(pod)
    api_server.pods["box"] = pod.id
    yield pod
    made.remove_all()
