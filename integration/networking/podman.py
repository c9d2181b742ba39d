"""Podman next to the server under test, on the server's CNI network or on a netavark network."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from integration.conftest import NodeDirs
from integration.node.commands import NodeError
from integration.node.isolation import Node
from integration.node.mounts import mount_paths
from integration.node.packages import Unpacked
from shim.netns.syscalls import unmount

Backend = Literal["cni", "netavark"]
"""Podman's network backend."""

NAME = "theirs"
_PINS = Path("/run/netns")
"""Podman bind-mounts it on itself, and never unmounts it."""
_SECONDS = 120
_CONFIG = """\
[containers]
log_driver = "k8s-file"
seccomp_profile = "unconfined"
[engine]
cgroup_manager = "cgroupfs"
conmon_path = ["{podman}/usr/bin/conmon"]
events_logger = "file"
helper_binaries_dir = ["{podman}/usr/lib/podman"]
runtime = "runc"
[engine.runtimes]
runc = ["{runc}"]
[network]
cni_plugin_dirs = {plugins}
network_backend = "{backend}"
network_config_dir = "{networks}"
"""


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman's command, with separate storage and networks."""

    program: Path
    home: Path
    environ: dict[str, str]

    def run(self, *words: str) -> str:
        """Run a command and return its output; NodeError if it fails."""
        storage = ["--root", str(self.home / "root"), "--runroot", str(self.home / "run"), "--storage-driver", "vfs"]
        done = subprocess.run(
            [self.program, *storage, "--tmpdir", str(self.home / "tmp"), *words],
            capture_output=True,
            check=False,
            text=True,
            timeout=_SECONDS,
            env=self.environ,
        )
        if done.returncode != 0:
            raise NodeError(f"podman {' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def inspect(self) -> dict[str, Any]:
        """Return `podman inspect` of the container."""
        (found,) = json.loads(self.run("inspect", NAME))
        return dict(found)

    def netns(self) -> Path:
        """Return the path of the container's pinned network namespace."""
        return Path(self.inspect()["NetworkSettings"]["SandboxKey"])

    def addresses(self) -> set[str]:
        """Return the container's addresses, seen from inside."""
        shown = self.run("exec", NAME, "/bin/ip", "-o", "address", "show", "dev", "eth0")
        return {line.split()[3].partition("/")[0] for line in shown.splitlines()}


@contextmanager
def podman_beside(
    node: Node, dirs: NodeDirs, home: Path, *, backend: Backend, network: str, port: int
) -> Iterator[Podman]:
    """Run a container on a network, with a host port. With netavark podman creates the network.

    With CNI, podman shares the server's configurations and reservations.
    """
    podman = _podman(node.podman, home, _config(node, dirs, home, backend=backend))
    pins_mounted = str(_PINS) in mount_paths()
    root = home / "rootfs"
    (root / "bin").mkdir(parents=True)
    (root / "bin/busybox").write_bytes(node.busybox.read_bytes())
    (root / "bin/busybox").chmod(0o755)
    for name in ("ip", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    if backend == "netavark":
        podman.run("network", "create", "--subnet", "10.94.0.0/24", network)
    where = ["--cgroup-parent", f"{node.cgroup_parent}/podman", "--network", network, "--publish", f"{port}:80"]
    try:
        podman.run("run", "--detach", "--name", NAME, *where, "--rootfs", str(root), "/bin/sleep", "3600")
        yield podman
    finally:
        podman.run("rm", "--force", "--time", "0", "--ignore", NAME)
        if backend == "netavark":
            podman.run("network", "rm", network)
        if not pins_mounted and str(_PINS) in mount_paths():
            unmount(_PINS)


def _config(node: Node, dirs: NodeDirs, home: Path, *, backend: Backend) -> str:
    return _CONFIG.format(
        podman=node.podman.root,
        runc=node.stable.root / "usr/sbin/runc",
        plugins=json.dumps([str(dirs.cni_more_bin), str(dirs.cni_bin)]),
        backend=backend,
        networks=dirs.cni_conf if backend == "cni" else home / "networks",
    )


def _podman(unpacked: Unpacked, home: Path, config: str) -> Podman:
    home.mkdir()
    (home / "containers.conf").write_text(config)
    libraries = (unpacked.root / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib"))
    environ = {
        key: value for key, value in os.environ.items() if key != "DOCKER_CONFIG"
    }  # podman would read the directory, which is missing
    environ |= {
        "CONTAINERS_CONF": str(home / "containers.conf"),
        "HOME": str(home),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }
    return Podman(unpacked.root / "usr/bin/podman", home, environ)
