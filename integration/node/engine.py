"""A private Docker Engine: dockerd with its own containerd, data, socket and log, in one directory."""

import http
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import msgspec

from integration.node import control_groups
from integration.node.commands import NodeError, allowed, run
from integration.node.control_groups import CgroupDriver
from integration.node.daemon import Daemon
from integration.node.mounts import unmount_all
from integration.node.netns import Netns
from integration.node.processes import children, command
from integration.waiting import wait_until
from shim.checkpoint.root import ORDERS
from shim.dockerd.runc import ORDERED_RUNTIME, ORDERS_OPTION
from shim.install.layout import oci_runtime

_START_SECONDS = 120
_STOP_SECONDS = 60
_CALL_SECONDS = 60
_PING_SECONDS = 5
_CONTAINERD_TOO_SLOW = "timeout waiting for containerd to start"
"""Error with which dockerd exits on a stalling machine: it waits only 15 s, which is not configurable."""
_REMOVED_BY_ANOTHER = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


class Engine:
    """A dockerd.

    `binaries` are searched for dockerd, containerd, its shim, runc and docker-init before the machine's PATH.
    `cgroup_driver` creates the cgroups of its containers, below `cgroup_parent`. `settings` are added to its
    daemon.json. It writes only below `home`, which must not lie on an overlay file system, and whose path must be short
    because it holds unix sockets. dockerd runs in the network namespace `netns`, with its environment variables, by
    default in the current one; `environ` is added to this process's environment.
    """

    def __init__(
        self,
        name: str,
        *,
        binaries: Sequence[Path],
        home: Path,
        cgroup_driver: CgroupDriver,
        cgroup_parent: str,
        settings: dict[str, object] | None = None,
        shares_bridge: bool = False,
        netns: Netns | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.binaries = binaries
        self.home = home
        self.cgroup_driver = cgroup_driver
        self.cgroup_parent = cgroup_parent
        self.socket = home / "docker.sock"
        self.url = f"unix://{self.socket}"
        self._api: docker.APIClient | None = None
        self._has_run = False
        self._keeps_bridge = shares_bridge or netns is not None
        home.mkdir(parents=True)
        (home / "daemon.json").write_bytes(msgspec.json.encode(self._settings(settings or {})))
        merged = {**os.environ, **(netns.environ if netns else {}), **(environ or {})}
        self.daemon = Daemon(
            [*(netns.prefix if netns else ()), program("dockerd", binaries), "--config-file", home / "daemon.json"],
            log=home / "dockerd.log",
            env={**merged, "PATH": os.pathsep.join([*map(str, binaries), merged["PATH"]])},
        )

    def _settings(self, extra: dict[str, object]) -> dict[str, object]:
        return {
            "hosts": [self.url],
            "data-root": str(self.home / "data"),
            "exec-root": str(self.home / "exec"),
            "pidfile": str(self.home / "dockerd.pid"),
            "cgroup-parent": self.cgroup_parent,
            # On a machine with systemd, Docker would use systemd's cgroup driver, but most of our namespaces cannot
            # reach systemd.
            "exec-opts": [f"native.cgroupdriver={self.cgroup_driver}"],
            "runtimes": ordered_runtime(self.home, orders=self.home / ORDERS),
            **extra,
        }

    @property
    def api(self) -> docker.APIClient:
        """A client of this engine with the newest API version of both; it survives restarts of the engine."""
        if self._api is None:
            self._api = docker.APIClient(base_url=self.url, version="auto", timeout=int(allowed(_CALL_SECONDS)))
        return self._api

    @property
    def version(self) -> str:
        """The version of the engine, such as 20.10.24."""
        return str(self.api.version()["Version"])

    @property
    def has_containerd_store(self) -> bool:
        """Whether it uses the containerd image store instead of a graph driver."""
        return self.name.endswith("-containerd")

    def cgroup_below(self, *names: str) -> str:
        """Return the path of a cgroup below its cgroup parent, named as by a kubelet."""
        return control_groups.path_below(self.cgroup_parent, *names)

    def cgroup_of(self, container: str, *, parent: str = "") -> str:
        """Return the path of a container's cgroup below `parent`, by default below the engine's cgroup parent."""
        return control_groups.path_of_container(parent or self.cgroup_below(), container)

    @property
    def log(self) -> Path:
        """The log file of dockerd and containerd."""
        return self.daemon.log

    def start(self) -> None:
        """Start dockerd and wait until it answers."""
        self._has_run = True
        deadline = time.monotonic() + allowed(_START_SECONDS)
        while True:
            try:
                return self.daemon.start(ready=lambda: answers(self.socket), timeout=_START_SECONDS)
            except NodeError as error:
                if _CONTAINERD_TOO_SLOW not in str(error) or time.monotonic() > deadline:
                    raise

    def stop(self) -> None:
        """Stop dockerd; its containers stop too, unless live-restore is on."""
        self.daemon.stop(timeout=_STOP_SECONDS)

    def restart(self) -> None:
        """Stop and start it with the same data and socket."""
        self.stop()
        self.start()

    @contextmanager
    def configured(self, **settings: object) -> Iterator[None]:
        """Restart with further settings, and after the block without them."""
        path = self.home / "daemon.json"
        before = path.read_bytes()
        path.write_bytes(msgspec.json.encode(msgspec.json.decode(before) | settings))
        try:
            self.restart()
            yield
        finally:
            path.write_bytes(before)
            self.restart()

    def containerd(self) -> int | None:
        """Return the pid of its containerd, None while it is down."""
        dockerd = self.daemon.pid if self.daemon.running else None
        if dockerd is None:
            return None
        found = [pid for pid in children(dockerd) if b"containerd" in command(pid).partition(b"\0")[0]]
        return found[0] if found else None

    def kill(self) -> None:
        """Kill dockerd, as in a crash: containers and containerd-shims keep running."""
        self.daemon.kill()

    def freeze(self) -> None:
        """Make every call hang: the socket accepts connections, but no answer comes."""
        self.daemon.signal(signal.SIGSTOP)
        # Threads stop one by one, and the last may still answer.
        os.waitid(os.P_PID, self.daemon.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Make a frozen engine answer again."""
        self.daemon.signal(signal.SIGCONT)

    def close(self) -> None:
        """Remove all containers, stop dockerd and delete its bridge, unless another engine uses the bridge too."""
        try:
            if self._has_run:
                self._remove_containers()
        finally:
            if self._api is not None:
                self._api.close()
            self.stop()
            unmount_all(self.home)  # such as the network namespaces of host network pods
            if not self._keeps_bridge:
                remove_link("docker0")

    def _remove_containers(self) -> None:
        """Remove all containers, also of a crashed dockerd, whose containers keep running."""
        if not self.daemon.running:
            self.start()
        for container in self.api.containers(all=True, quiet=True):
            try:
                self.api.remove_container(container["Id"], force=True, v=True)
            except docker.errors.APIError as error:
                if error.status_code not in _REMOVED_BY_ANOTHER:
                    raise
        wait_until(lambda: not self.api.containers(all=True, quiet=True), _STOP_SECONDS)


def ordered_runtime(home: Path, *, orders: Path) -> dict[str, object]:
    """Install this checkout's OCI runtime into a directory; return it as Docker's setting `runtimes`.

    The runtime reads its orders from the directory `orders`.
    """
    script = home / "oci-runtime"
    script.write_bytes(oci_runtime().content)
    script.chmod(0o755)
    return {ORDERED_RUNTIME: {"path": str(script), "runtimeArgs": [ORDERS_OPTION, str(orders)]}}


def answers(path: Path) -> bool:
    """Return whether an Engine answers a ping on this socket.

    Without the SDK, which leaves its socket open when a connection is refused, as by the leftover socket of a crashed
    engine.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(allowed(_PING_SECONDS))
        try:
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False


def remove_link(name: str) -> None:
    """Delete a network interface if it exists."""
    if has_link(name):
        run(["ip", "link", "delete", name], timeout=_CALL_SECONDS)


@contextmanager
def own_link(name: str) -> Iterator[None]:
    """Delete at the end of the block a network interface that plugins create inside, unless it was there before."""
    was_there = has_link(name)
    try:
        yield
    finally:
        if not was_there:
            remove_link(name)


def has_link(name: str) -> bool:
    """Return whether a network interface of this name exists.

    /sys/class/net cannot tell: it shows the network namespace in which it was mounted, not the caller's.
    """
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def program(name: str, binaries: Sequence[Path]) -> Path:
    """Return the first program of this name in the directories; raise NodeError if there is none."""
    for directory in binaries:
        if (directory / name).is_file():
            return directory / name
    raise NodeError(f"find {name}: not in {', '.join(map(str, binaries))}")
