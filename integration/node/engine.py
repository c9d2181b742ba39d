"""A private Docker Engine: dockerd with its own containerd, data, socket and log, in its own directory."""

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import docker
import msgspec

from integration.node.commands import NodeError, run
from integration.node.daemon import Daemon

_START_SECONDS = 60
_STOP_SECONDS = 40
_CALL_SECONDS = 60
_PING_SECONDS = 5

CgroupDriver = Literal["cgroupfs", "systemd"]


class Engine:
    """One dockerd.

    `binaries` are searched for dockerd, containerd, its shim, runc and docker-init before the machine's PATH.
    `settings` go into its daemon.json. Everything it writes is below `home`, which must not lie on an overlay
    file system and whose path must be short (it holds unix sockets).
    """

    cgroup_driver: CgroupDriver = "cgroupfs"

    def __init__(
        self,
        name: str,
        *,
        binaries: Sequence[Path],
        home: Path,
        cgroup_parent: str,
        settings: dict[str, object] | None = None,
        shares_bridge: bool = False,
    ) -> None:
        self.name = name
        self.home = home
        self.cgroup_parent = cgroup_parent
        self.socket = home / "docker.sock"
        self.url = f"unix://{self.socket}"
        self._api: docker.APIClient | None = None
        self._shares_bridge = shares_bridge
        home.mkdir(parents=True)
        (home / "daemon.json").write_bytes(msgspec.json.encode(self._settings(settings or {})))
        search = os.pathsep.join([*map(str, binaries), os.environ["PATH"]])
        self.daemon = Daemon(
            [program("dockerd", binaries), "--config-file", home / "daemon.json"],
            log=home / "dockerd.log",
            env={**os.environ, "PATH": search},
        )

    def _settings(self, extra: dict[str, object]) -> dict[str, object]:
        return {
            "hosts": [self.url],
            "data-root": str(self.home / "data"),
            "exec-root": str(self.home / "exec"),
            "pidfile": str(self.home / "dockerd.pid"),
            "cgroup-parent": self.cgroup_parent,
            # Where systemd runs, Docker would ask it for cgroups; inside the box it cannot be reached.
            "exec-opts": [f"native.cgroupdriver={self.cgroup_driver}"],
            **extra,
        }

    @property
    def api(self) -> docker.APIClient:
        """A client of this engine, the newest API version both know; stays valid over a restart."""
        if self._api is None:
            self._api = docker.APIClient(base_url=self.url, version="auto", timeout=_CALL_SECONDS)
        return self._api

    @property
    def version(self) -> str:
        """The engine's own version, such as 20.10.24."""
        return str(self.api.version()["Version"])

    @property
    def log(self) -> Path:
        """The file with dockerd's and containerd's messages."""
        return self.daemon.log

    def start(self) -> None:
        """Start dockerd and wait until it answers."""
        self.daemon.start(ready=lambda: answers(self.socket), timeout=_START_SECONDS)

    def stop(self) -> None:
        """Stop dockerd in order; its containers stop with it, as Docker does without live-restore."""
        self.daemon.stop(timeout=_STOP_SECONDS)

    def restart(self) -> None:
        """Stop and start again, on the same data and socket."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End dockerd like a crash would: containers and their shims go on."""
        self.daemon.kill()

    def freeze(self) -> None:
        """Let every call hang: the socket accepts, nobody answers."""
        self.daemon.signal(signal.SIGSTOP)
        # Its threads stop one by one; the last may still answer.
        os.waitid(os.P_PID, self.daemon.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen engine answer again."""
        self.daemon.signal(signal.SIGCONT)

    def close(self) -> None:
        """Remove all containers, stop dockerd and take away the bridge it leaves behind, unless it is another's too."""
        if self.daemon.running:
            for container in self.api.containers(all=True, quiet=True):
                self.api.remove_container(container["Id"], force=True, v=True)
        if self._api is not None:
            self._api.close()
        self.stop()
        if not self._shares_bridge:
            remove_link("docker0")


def answers(path: Path) -> bool:
    """Tell whether an Engine answers a ping on this socket.

    By hand: the SDK leaves its socket open when a connection is refused, and refused is what a crashed engine's
    leftover socket does.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PING_SECONDS)
        try:
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False


def remove_link(name: str) -> None:
    """Delete a network interface where there is one."""
    if has_link(name):
        run(["ip", "link", "delete", name], timeout=10)


def has_link(name: str) -> bool:
    """Tell whether there is a network interface of this name.

    Not by /sys/class/net, which shows the network namespace it was mounted in and not the caller's.
    """
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def program(name: str, binaries: Sequence[Path]) -> Path:
    """Return the first program of this name in the directories."""
    for directory in binaries:
        if (directory / name).is_file():
            return directory / name
    raise NodeError(f"find {name}: not in {', '.join(map(str, binaries))}")
