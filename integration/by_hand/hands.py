"""Docker's command line client on a node with a pod, and checks of that pod."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import grpc

from integration.conftest import Served
from integration.node.commands import NodeError, run
from integration.node.engine import Engine
from integration.node.leak_check import NodeSnapshot
from integration.pods.kubelet import Kubelet, Pod, in_namespaces, refusal, unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

COMMAND_SECONDS = 120
COUNT = ("sh", "-c", "trap 'exit 7' TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.2 & wait $!; done")
"""Counts up into its log, and exits with 7 on SIGTERM."""


class DockerCli:
    """The command line client of an engine, or an older one that negotiates the API version."""

    def __init__(self, engine: Engine, *, home: Path) -> None:
        """Use `home` for the settings that the client writes."""
        path = os.pathsep.join(map(str, engine.binaries))
        found = shutil.which("docker", path=path)
        if found is None:
            raise NodeError(f"no docker in {path}")
        self._program = found
        self._environ = {"DOCKER_HOST": engine.url, "DOCKER_CONFIG": str(home), "DOCKER_BUILDKIT": "0"}

    def __call__(self, *words: str) -> str:
        """Run `docker` with these arguments, and return its output. Raises NodeError if it fails."""
        return run([self._program, *words], timeout=COMMAND_SECONDS, env=self._environ).strip()

    def refuses(self, *words: str) -> str:
        """Return Docker's error for a command that it must refuse."""
        try:
            said = self(*words)
        except NodeError as refused:
            return str(refused)
        raise AssertionError(f"docker {' '.join(words)} is not refused: {said}")


@dataclass(frozen=True, slots=True)
class Hands:
    """A pod with a counting container, and the command line client."""

    docker: DockerCli
    served: Served
    kubelet: Kubelet
    pod: Pod
    app: str
    """The id of the container."""
    before: NodeSnapshot
    """Snapshot of the node without the pod."""
    directory: Path
    """Directory for files of the test."""

    def status(self) -> pb.ContainerStatus:
        """Return the status of the container."""
        return self.served.cri.container_status(self.app)

    def wait_state(self, state: pb.ContainerState) -> pb.ContainerStatus:
        """Wait until the container is in a state, and return its status."""
        wait_until(lambda: self.status().state == state)
        return self.status()

    def wait_ready(self, *, ready: bool) -> None:
        """Wait until the pod is ready or not ready."""
        wanted = pb.SANDBOX_READY if ready else pb.SANDBOX_NOTREADY
        wait_until(lambda: self.served.cri.sandbox_status(self.pod.id).state == wanted)

    def wait_gone(self) -> None:
        """Wait until the container is unknown to the kubelet."""
        wait_until(lambda: self.app not in self.listed())
        assert refusal(self.status)[0] is grpc.StatusCode.NOT_FOUND

    def listed(self) -> list[str]:
        """Return the ids of the pod's containers."""
        return [container.id for container in self.served.cri.containers(pod_sandbox_id=self.pod.id)]

    def assert_untouched(self) -> None:
        """Check that pod and container are unchanged, and answer."""
        assert self.served.cri.sandbox_status(self.pod.id).state == pb.SANDBOX_READY
        assert self.status().state == pb.CONTAINER_RUNNING
        assert self.listed() == [self.app]
        assert self.kubelet.inside(self.app, "echo here") == "here\n"

    def lines(self) -> list[int]:
        """Return the numbers in the container's CRI log so far."""
        path = Path(self.pod.config.log_directory) / "app-0.log"
        return [int(line.split(" ", 3)[3]) for line in path.read_text().split("\n")[:-1]]

    def wait_lines(self, more: int = 2) -> list[int]:
        """Wait until the container has printed `more` numbers, and return all of its numbers."""
        there = len(self.lines())
        wait_until(lambda: len(self.lines()) >= there + more)
        return self.lines()

    def restart_server(self) -> None:
        """Stop the server and start it again."""
        self.served.server.stop()
        self.served.restart()

    def next_container(self) -> str:
        """Create the next attempt, as a kubelet does after a container has exited."""
        return _counting(self.kubelet, self.pod, attempt=1)

    def end(self) -> None:
        """Stop and remove the pod as a kubelet does, and check that nothing of it is left."""
        self.served.cri.stop_container(self.app)
        self.served.cri.stop(self.pod.id)
        self.served.cri.remove_container(self.app)
        self.served.cri.remove(self.pod.id)
        assert self.before.added(self.served.snapshot()) == []


def new_hands(served: Served, kubelet: Kubelet, directory: Path) -> Hands:
    """Run a pod with a counting container."""
    before, docker = served.snapshot(), DockerCli(served.engine, home=directory / "docker")
    pod = kubelet.pod(log_directory=str(directory))
    app = _counting(kubelet, pod, attempt=0)
    return Hands(docker, served, kubelet, pod, app, before, directory)


def _counting(kubelet: Kubelet, pod: Pod, *, attempt: int) -> str:
    metadata = pb.ContainerMetadata(name="app", attempt=attempt)
    own_pids = in_namespaces(pid=pb.CONTAINER)
    return kubelet.started(pod, *COUNT, metadata=metadata, log_path=f"app-{attempt}.log", linux=own_pids)


def stranger(hands: Hands, image: str, *options: str) -> str:
    """Run a sleeping container by hand, and return its id."""
    return hands.docker("run", "--detach", *options, image, "sleep", "3600")


def unused_image(prefix: str) -> str:
    """Return a reference that no other test uses."""
    return f"test.example/{unused_name(prefix)}:v1"
