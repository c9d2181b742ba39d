"""Docker, CNI and images on the machine itself, for the demo; all additions are undone afterwards.

The additions are recorded, so that `release` can also clean up after a killed demo. Installed packages and Docker's
data stay.
"""

import errno
import os
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import msgspec

from integration.node import images
from integration.node.commands import NodeError, run, step
from integration.node.daemon import Daemon
from integration.node.engine import answers, has_link, ordered_runtime, remove_link
from integration.node.mounts import unmount_all
from integration.node.packages import BUSYBOX, ensure_installed, ensure_unpacked
from integration.node.rules import Rules, restore, rules_now
from shim.checkpoint.root import ORDERS
from shim.install import daemon_json
from shim.install.layout import DAEMON_JSON
from shim.netns.pin import remove_empty_directory

SOCKET = Path("/var/run/docker.sock")
CONF_DIR = Path("/etc/cni/net.d")
BIN_DIRS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
EXAMPLE = Path(__file__).parents[2] / "cni_conf_examples/10-bridge.conflist"

_RECORD = Path("/run/pydockershim-demo.json")
_HOME = Path("/var/lib/pydockershim-demo")
"""This checkout's OCI runtime, its orders, and dockerd's settings. Not in /run, which may be noexec."""
OWN_CONF_DIR = _HOME / "cni"
"""Network configuration for the demo on a machine that has one for other pods in CONF_DIR."""
_OWN_NAME, _OWN_BRIDGE, _OWN_SUBNET = "pydockershim-demo", "cni-demo0", "192.0.2.0/24"
_LOG = Path("/var/log/pydockershim-demo-dockerd.log")
_OF_DOCKER = (
    Path("/etc/docker/key.json"),
    Path("/etc/docker"),
    Path("/run/containerd"),
    *(
        Path("/run/docker", name)
        for name in ("containerd", "libnetwork", "metrics.sock", "netns", "plugins", "runtime-runc", "swarm")
    ),
    Path("/run/docker"),
    _LOG,
)
"""Files that dockerd writes besides its data. A directory may have existed before without the listed files in it."""
_OF_PODS = (Path("/etc/cni/net.d"), Path("/etc/cni"), Path("/var/lib/cni"))
_PINS = Path("/run/netns")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OF_CONTAINERS = "docker"
"""Cgroup below the root of each hierarchy in which dockerd places containers; dockerd does not remove it."""
_BOOKKEEPING = ("lock", "last_reserved_ip")
"""Files of host-local that are no leases."""
_START_SECONDS = 60
_STOP_SECONDS = 40


class Undo(msgspec.Struct):
    """The additions that `release` undoes: images, a configuration file and its bridge, a dockerd, its rules and files.

    `dockerd_started` is the start time of that process in clock ticks since boot, because its pid may be reused.
    """

    images: list[str] = []
    conf: str = ""
    bridge: str = ""
    dockerd: int = 0
    dockerd_started: int = 0
    rules: Rules | None = None
    """The forwarding rules of the machine before; None if a Docker that was already running handles them."""
    missing: list[str] = []
    """Files and directories that did not exist before Docker, plugins and the server."""
    control_groups: list[str] = []
    """Docker's cgroups that did not exist before."""

    def save(self) -> None:
        """Write the record."""
        _RECORD.write_bytes(msgspec.json.encode(self))


@contextmanager
def prepared_host() -> Iterator[None]:
    """Set up the machine for pods, and undo the additions when the block ends.

    Inside the block an Engine answers on SOCKET and has the images PAUSE and BUSYBOX, CONF_DIR has a network
    configuration, and one of BIN_DIRS has the CNI plugins. If CONF_DIR had a configuration before, OWN_CONF_DIR has
    another.
    """
    release()
    undo = Undo()
    daemon: Daemon | None = None
    try:
        _ensure_packages()
        undo.missing = [str(path) for path in (*_OF_DOCKER, *_OF_PODS, _PINS) if not path.exists()]
        undo.control_groups = [str(path) for path in control_groups_of_docker() if not path.exists()]
        undo.save()
        daemon = _ensure_engine(undo)
        _ensure_configuration(undo)
        _ensure_images(undo)
        yield
    finally:
        release()
        if daemon is not None:
            daemon.wait_ended(timeout=10)


def release() -> None:
    """Undo the additions of an earlier `prepared_host`; does nothing if there are none."""
    try:
        undo = msgspec.json.decode(_RECORD.read_bytes(), type=Undo)
    except FileNotFoundError:
        return
    with step("undoing the changes to this machine"):
        if undo.images and answers(SOCKET):
            _remove_images(undo.images)
        if undo.conf:
            Path(undo.conf).unlink(missing_ok=True)
        if undo.bridge and has_link(undo.bridge) and not _ports(undo.bridge):
            remove_link(undo.bridge)
        if undo.dockerd:
            _stop_engine(undo)
            _remove_files_of_docker(undo)
            for path in undo.control_groups:
                remove_unused_control_group(Path(path))
        if _HOME.is_dir():
            shutil.rmtree(_HOME)
        if undo.rules is not None:
            restore(undo.rules)
        _remove_files_of_pods(undo)
    _RECORD.unlink()


def _remove_files_of_docker(undo: Undo) -> None:
    for path in _OF_DOCKER:
        if str(path) in undo.missing and path.is_dir():
            unmount_all(path)
            shutil.rmtree(path)
        elif str(path) in undo.missing:
            path.unlink(missing_ok=True)


def control_groups_of_docker(root: Path = _CONTROL_GROUPS) -> list[Path]:
    """Return the default cgroups of dockerd: a single cgroup, or with cgroup v1 a cgroup in each hierarchy."""
    if (root / "cgroup.controllers").exists():
        return [root / _OF_CONTAINERS]
    # A link is another name of a hierarchy.
    hierarchies = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink()]
    return [path / _OF_CONTAINERS for path in hierarchies]


def remove_unused_control_group(group: Path) -> None:
    """Remove a cgroup unless it holds a process or a cgroup, such as a container of another Docker."""
    try:
        group.rmdir()
    except OSError as cause:
        # EROFS: below the directory of a hierarchy that is not mounted, as in some containers. The last two: in use.
        if cause.errno not in {errno.ENOENT, errno.EROFS, errno.EBUSY, errno.ENOTEMPTY}:
            raise


def _remove_files_of_pods(undo: Undo) -> None:
    for path in _OF_PODS:
        if str(path) in undo.missing:
            remove_unused(path)
    if str(_PINS) in undo.missing:
        remove_empty_directory(_PINS)


def remove_unused(directory: Path) -> None:
    """Remove a directory and its subdirectories unless they hold leases or foreign files."""
    for path, _, names in os.walk(directory, topdown=False):
        if all(name.startswith(_BOOKKEEPING) for name in names):
            for name in names:
                Path(path, name).unlink()
        if not any(Path(path).iterdir()):
            Path(path).rmdir()


def _ports(bridge: str) -> str:
    return run(["ip", "-oneline", "link", "show", "master", bridge], timeout=10)


def _ensure_packages() -> None:
    wanted = []
    if not answers(SOCKET) and shutil.which("dockerd") is None:
        wanted.append("docker.io")
    if not any((directory / "bridge").exists() for directory in BIN_DIRS):
        wanted.append("containernetworking-plugins")
    ensure_installed(wanted)


def _ensure_engine(undo: Undo) -> Daemon | None:
    if answers(SOCKET):
        return None
    with step("starting dockerd"):
        undo.rules = rules_now()
        undo.save()
        daemon = Daemon(["dockerd", f"--config-file={_with_runtime()}"], log=_LOG, env=os.environ)
        daemon.spawn()
        undo.dockerd, undo.dockerd_started = daemon.pid, started_at(daemon.pid)
        undo.save()
        daemon.wait_ready(lambda: answers(SOCKET), timeout=_START_SECONDS)
    return daemon


def _with_runtime() -> Path:
    """Return a file with the settings of this machine's Docker plus the OCI runtime for user namespaces."""
    _HOME.mkdir(exist_ok=True)
    text = DAEMON_JSON.read_text() if DAEMON_JSON.exists() else None
    settings = daemon_json.parse_settings(text, path=str(DAEMON_JSON))
    path = _HOME / DAEMON_JSON.name
    path.write_text(daemon_json.merged(settings, {daemon_json.RUNTIMES: ordered_runtime(_HOME, orders=_HOME / ORDERS)}))
    return path


def _stop_engine(undo: Undo) -> None:
    if started_at(undo.dockerd) != undo.dockerd_started:
        return
    handle = os.pidfd_open(undo.dockerd)
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], _STOP_SECONDS)[0]:
            raise NodeError(f"stop dockerd {undo.dockerd}: it did not end within {_STOP_SECONDS} s")
    finally:
        os.close(handle)


def started_at(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, 0 if it has ended.

    See proc(5), field 22 of stat.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0
    # The second field is the program's name in parentheses, which may contain blanks and parentheses.
    return int(stat.rpartition(")")[2].split()[19])


def _ensure_configuration(undo: Undo) -> None:
    CONF_DIR.mkdir(parents=True, exist_ok=True)
    content, target = EXAMPLE.read_bytes(), CONF_DIR / EXAMPLE.name
    if any(path.suffix in {".conflist", ".conf", ".json"} for path in CONF_DIR.iterdir()):
        # The plugins may be missing or need a cluster, and the bridge of the example may have other addresses.
        OWN_CONF_DIR.mkdir(parents=True, exist_ok=True)
        content, target = own_network(content), OWN_CONF_DIR / EXAMPLE.name
    bridge = bridge_of(content)
    if not has_link(bridge):
        undo.bridge = bridge
    undo.conf = str(target)
    undo.save()
    target.write_bytes(content)
    print(f"  - installed {target}", flush=True)


def own_network(example: bytes) -> bytes:
    """Return the example with a name, a bridge and addresses that no other network of the machine has."""
    network = msgspec.json.decode(example)
    network["name"] = _OWN_NAME
    [bridge] = [plugin for plugin in network["plugins"] if plugin["type"] == "bridge"]
    bridge["bridge"] = _OWN_BRIDGE
    bridge["ipam"]["ranges"] = [[{"subnet": _OWN_SUBNET}]]
    return msgspec.json.encode(network)


def bridge_of(conflist: bytes) -> str:
    """Return the name of the bridge of a configuration list, the plugin's default if it names none."""
    for plugin in msgspec.json.decode(conflist)["plugins"]:
        if plugin["type"] == "bridge":
            return str(plugin.get("bridge", "cni0"))
    raise NodeError("find the bridge: the configuration list has no plugin of type bridge")


def _ensure_images(undo: Undo) -> None:
    client = docker.APIClient(base_url=f"unix://{SOCKET}", version="auto")
    try:
        busybox = ensure_unpacked(BUSYBOX).root / "bin/busybox"
        for image in (images.pause_image(busybox), images.busybox_image(busybox)):
            if images.image_id(client, image.reference) is None:
                with step(f"making {image.reference}"):
                    undo.images.append(image.reference)
                    undo.save()
                    images.load(client, image)
    finally:
        client.close()


def _remove_images(references: list[str]) -> None:
    # Another container may use an image by now; then the image stays, and a message says so.
    client = docker.APIClient(base_url=f"unix://{SOCKET}", version="auto")
    try:
        for reference in references:
            try:
                client.remove_image(reference)
            except docker.errors.ImageNotFound:
                continue
            except docker.errors.APIError as cause:
                print(f"  - image {reference} stays: {cause.explanation}", flush=True)
    finally:
        client.close()
