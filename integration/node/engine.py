"""A private Docker Engine: dockerd with its own containerd, data, socket and log, in its own directory."""

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
"""Why dockerd ends on a machine that stalls: it waits for 15 s, and has no setting for it."""
_REMOVED_BY_ANOTHER = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


class Engine:
    """One dockerd.

    `binaries` are searched for dockerd, containerd, its shim, runc and docker-init before the machine's PATH.
    `cgroup_driver` makes the control groups of its containers, below `cgroup_parent`. `settings` go into its
    daemon.json. Everything it writes is below `home`, which must not lie on an overlay file system and whose path must
    be short (it holds unix sockets). It runs in the network namespace `netns`, with the environment variables that
    belong to it, or else in ours; `environ` is added to our own environment.
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
            # Where systemd runs, Docker would ask it for cgroups; in most namespaces of ours it cannot be reached.
            "exec-opts": [f"native.cgroupdriver={self.cgroup_driver}"],
            "runtimes": ordered_runtime(self.home, orders=self.home / ORDERS),
            **extra,
        }

    @property
    def api(self) -> docker.APIClient:
        """A client of this engine, the newest API version both know; stays valid over a restart."""
        if self._api is None:
            self._api = docker.APIClient(base_url=self.url, version="auto", timeout=int(allowed(_CALL_SECONDS)))
        return self._api

    @property
    def version(self) -> str:
        """The engine's own version, such as 20.10.24."""
        return str(self.api.version()["Version"])

    @property
    def has_containerd_store(self) -> bool:
        """Whether images are containerd's, and not a graph driver's."""
        return self.name.endswith("-containerd")

    def cgroup_below(self, *names: str) -> str:
        """Return the path of a control group below its parent, as a kubelet names that of a pod."""
        return control_groups.path_below(self.cgroup_parent, *names)

    def cgroup_of(self, container: str, *, parent: str = "") -> str:
        """Return the path of a container's control group, below the one that was asked for or its own parent."""
        return control_groups.path_of_container(parent or self.cgroup_below(), container)

    @property
    def log(self) -> Path:
        """The file with dockerd's and containerd's messages."""
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
        """Stop dockerd in order; its containers stop with it, as Docker does without live-restore."""
        self.daemon.stop(timeout=_STOP_SECONDS)

    def restart(self) -> None:
        """Stop and start again, on the same data and socket."""
        self.stop()
        self.start()

    @contextmanager
    def configured(self, **settings: object) -> Iterator[None]:
        """Restart with further settings, and after the block again without them."""
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
        """Return the id of its containerd, None while there is none."""
        dockerd = self.daemon.pid if self.daemon.running else None
        if dockerd is None:
            return None
        found = [pid for pid in children(dockerd) if b"containerd" in command(pid).partition(b"\0")[0]]
        return found[0] if found else None

    def kill(self) -> None:
        """End dockerd like a crash would: containers and their shims go on."""
        self.daemon.kill()

    def freeze(self) -> None:
        """Let every call hang: the socket accepts, no answer comes."""
        self.daemon.signal(signal.SIGSTOP)
        # Its threads stop one by one; the last may still answer.
        os.waitid(os.P_PID, self.daemon.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen engine answer again."""
        self.daemon.signal(signal.SIGCONT)

    def close(self) -> None:
        """Remove all containers, stop dockerd and take away the bridge it leaves behind, unless it is another's too."""
        try:
            if self._has_run:
                self._remove_containers()
        finally:
            if self._api is not None:
                self._api.close()
            self.stop()
            unmount_all(self.home)  # such as the network namespace of pods of the host
            if not self._keeps_bridge:
                remove_link("docker0")

    def _remove_containers(self) -> None:
        """Remove all containers, also of a dockerd that has crashed: they go on without it."""
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
    """Install the OCI runtime of this checkout into a directory; return it as Docker's setting `runtimes`.

    It reads its orders in the directory `orders`.
    """
    script = home / "oci-runtime"
    script.write_bytes(oci_runtime().content)
    script.chmod(0o755)
    return {ORDERED_RUNTIME: {"path": str(script), "runtimeArgs": [ORDERS_OPTION, str(orders)]}}


def answers(path: Path) -> bool:
    """Return whether an Engine answers a ping on this socket.

    By hand: the SDK leaves its socket open when a connection is refused, and refused is what a crashed engine's
    leftover socket does.
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
    """Delete a network interface where there is one."""
    if has_link(name):
        run(["ip", "link", "delete", name], timeout=_CALL_SECONDS)


@contextmanager
def own_link(name: str) -> Iterator[None]:
    """Delete a network interface that plugins make inside the block at its end, however it ends."""
    try:
        yield
    finally:
        remove_link(name)


def has_link(name: str) -> bool:
    """Return whether there is a network interface of this name.

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
