"""A fresh machine: a privileged container with systemd as process 1 and without a network."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import grpc

from integration.cri import Cri, connected
from integration.node.commands import NodeError
from integration.node.engine import Engine
from integration.node.images import Image, load
from integration.packages.fresh.roots import root_archive
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc

_BOOT_SECONDS = 300
_REFUSAL_SECONDS = 30
_SOCKET = "run/cri-dockerd.sock"
_PLACES = ("/etc", "/opt", "/usr", "/var/lib")
_OF_OTHERS = (
    "/var/lib/apt",
    "/var/lib/dnf",
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/systemd",
    "/var/lib/cni",
)
"""Directories that package managers, Docker, systemd and the CNI plugins change at any time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, by its container."""

    engine: Engine
    container: str

    def run(self, *words: str) -> str:
        """Run a command to its end and return its output; raise NodeError if it fails."""
        code, output = self.tried(*words)
        if code != 0:
            raise NodeError(f"{' '.join(words)}: exit status {code}\n{output}")
        return output

    def tried(self, *words: str) -> tuple[int, str]:
        """Run a command and return its exit status and output."""
        api = self.engine.api
        started = api.exec_create(self.container, list(words), environment={"DEBIAN_FRONTEND": "noninteractive"})
        output = api.exec_start(started["Id"])
        return int(api.exec_inspect(started["Id"])["ExitCode"]), output.decode(errors="replace")

    def put(self, file: Path) -> str:
        """Copy a file into /srv and return its path there."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(file, file.name)
        self.engine.api.put_archive(self.container, "/srv", packed.getvalue())
        return f"/srv/{file.name}"

    def files(self) -> set[str]:
        """Return all paths in the directories where an installation puts files."""
        leave = [word for place in _OF_OTHERS for word in ("-path", place, "-prune", "-o")]
        return set(self.run("find", *_PLACES, *leave, "-print").splitlines())

    def mounts(self) -> set[str]:
        """Return all mount points."""
        return {line.split()[4] for line in self.run("cat", "/proc/self/mountinfo").splitlines()}

    def load(self, *images: Image) -> None:
        """Load images into the Docker of the machine."""
        api = docker.APIClient(base_url=f"unix://{self._root}/run/docker.sock", version="auto")
        try:
            for image in images:
                load(api, image)
        finally:
            api.close()

    @contextmanager
    def cri(self) -> Iterator[Cri]:
        """Connect to the server of the machine, through the root directory of its process 1."""
        with connected(self._root / _SOCKET) as cri:
            yield cri

    def refusal(self) -> str:
        """Return the error text of a server that refuses clients with UNAVAILABLE."""
        with grpc.insecure_channel(f"unix:{self._root / _SOCKET}") as channel:
            stub = api_pb2_grpc.RuntimeServiceStub(channel)
            try:
                stub.Version(pb.VersionRequest(), timeout=_REFUSAL_SECONDS, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    return str(error.details())
                raise
        raise NodeError("the server did not refuse the call")

    @property
    def _root(self) -> Path:
        return Path(f"/proc/{self.engine.api.inspect_container(self.container)['State']['Pid']}/root")

    def wait_booted(self) -> None:
        """Wait until systemd has nothing left to start."""
        wait_until(lambda: self.tried("systemctl", "is-system-running", "--wait")[1].strip() in _BOOTED, _BOOT_SECONDS)

    def is_active(self, *units: str) -> bool:
        """Return whether all these units are active."""
        # Given several units, systemctl succeeds if one of them is active.
        return all(self.tried("systemctl", "is-active", unit)[0] == 0 for unit in units)


_BOOTED = ("running", "degraded")
"""Degraded: some units, such as the kernel's file systems, cannot start in a container."""


@contextmanager
def booted(engine: Engine, suite: str) -> Iterator[Machine]:
    """Boot a fresh machine of a suite for the block."""
    api = engine.api
    tag = f"fresh-{suite}"
    api.import_image_from_file(str(root_archive(suite)), repository=tag, tag="test")
    host = api.create_host_config(
        privileged=True,
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        cgroupns="private",
        tmpfs={"/tmp": "", "/run": ""},
        network_mode="none",
    )
    # In a container systemd reads kernel parameters from its arguments; newer versions refuse cgroup v1
    # without this parameter.
    command = ["/lib/systemd/systemd", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
    made = api.create_container(
        f"{tag}:test",
        command,
        environment={"container": "docker"},
        volumes=["/var/lib/docker", "/var/lib/containerd"],
        host_config=host,
        tty=True,
    )["Id"]
    machine = Machine(engine, made)
    try:
        api.start(made)
        machine.wait_booted()
        yield machine
    finally:
        api.remove_container(made, force=True, v=True)
        api.remove_image(f"{tag}:test", force=True)
