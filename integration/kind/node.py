"""A kind node as `kind create cluster` starts it: a privileged container with systemd as process 1."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from integration.cri import Cri, connected
from integration.kind.image import NODE_IMAGE
from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NETWORK = "nodes"
"""Not the name of kind's network: kind creates that with IPv6, and expects IPv6 in an existing network of its name."""
_BOOT_SECONDS = 180
"""For a boot under load; on an idle machine it takes some seconds."""
_COMMAND_SECONDS = 120
_MODULES = Path("/lib/modules")


@dataclass(frozen=True, slots=True)
class KindNode:
    """A node container."""

    engine: Engine
    docker: Path
    """Docker's command line client, which kind uses."""
    name: str
    binds: Sequence[str] = ()
    """Files of the host mounted over the node's, like kind's extraMounts."""
    image: str = NODE_IMAGE

    def run(self, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run a command in the node, as kind does, to its end."""
        return self._cli("exec", "--interactive", "--privileged", self.name, *words, stdin=stdin)

    def output(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command in the node and return its output; raise NodeError if it fails."""
        done = self.run(*words, stdin=stdin)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")
            raise NodeError(
                f"run {' '.join(words)} in {self.name}: exit status {done.returncode}\n{said}{self.diagnosis()}"
            )
        return done.stdout.decode()

    def start(self) -> None:
        """Create and start the container."""
        if not self.engine.api.networks(names=[NETWORK]):
            self.engine.api.create_network(NETWORK)
        binds = [*self.binds, *([f"{_MODULES}:{_MODULES}:ro"] if _MODULES.exists() else [])]
        host = self.engine.api.create_host_config(
            privileged=True,
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            cgroupns="private",
            tmpfs={"/tmp": "", "/run": ""},
            binds=binds,
            init=False,
            network_mode=NETWORK,
            restart_policy={"Name": "on-failure", "MaximumRetryCount": 1},
        )
        self.engine.api.create_container(
            self.image, name=self.name, hostname=self.name, volumes=["/var"], host_config=host, tty=True, detach=True
        )
        self.engine.api.start(self.name)
        self.wait_booted()

    def restart(self) -> None:
        """Restart the container as `docker restart` does, and wait until the boot is complete."""
        self.engine.api.restart(self.name, timeout=10)
        self.wait_booted()

    def wait_booted(self) -> None:
        """Wait until systemd has nothing left to start, and the server answers."""
        try:
            wait_until(self._has_booted, _BOOT_SECONDS)
            self.wait_serving()
        except AssertionError:
            raise NodeError(f"boot {self.name}: not within {_BOOT_SECONDS} s\n{self.diagnosis()}") from None

    def _has_booted(self) -> bool:
        state = self.run("systemctl", "is-system-running", "--wait").stdout.decode().strip()
        return state in {"running", "degraded"} and self.run("test", "-S", "/run/cri-dockerd.sock").returncode == 0

    def wait_serving(self) -> None:
        """Wait until Docker and the server answer, after a restart of either."""
        with self.cri() as cri:
            wait_until(lambda: _is_serving(cri), _BOOT_SECONDS)

    def diagnosis(self) -> str:
        """Return output that helps to find why a node is broken."""
        commands: Sequence[Sequence[str]] = (
            ("systemctl", "--failed", "--no-pager"),
            ("systemctl", "list-jobs", "--no-pager"),
            ("journalctl", "--no-pager", "--lines=60"),
        )
        return "\n".join(self.run(*words).stdout.decode(errors="replace") for words in commands)

    @contextmanager
    def cri(self) -> Iterator[Cri]:
        """Connect to the server in the node, through the root directory of its process 1."""
        pid = self.engine.api.inspect_container(self.name)["State"]["Pid"]
        with connected(Path(f"/proc/{pid}/root/run/cri-dockerd.sock")) as cri:
            yield cri

    def remove(self) -> None:
        """Remove the container and its volume, as `kind delete cluster` does."""
        self._cli("rm", "--force", "--volumes", self.name)

    def _cli(self, *words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [self.docker, "--host", self.engine.url, *words],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=_COMMAND_SECONDS,
            env=os.environ,
        )


@contextmanager
def booted(node: KindNode) -> Iterator[KindNode]:
    """Start a node, and remove it at the end."""
    try:
        node.start()
        yield node
    finally:
        node.remove()


def _is_serving(cri: Cri) -> bool:
    try:
        cri.sandboxes()
        status = cri.runtime.Status(pb.StatusRequest()).status
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return False
        raise
    return any(each.type == "RuntimeReady" and each.status for each in status.conditions)
