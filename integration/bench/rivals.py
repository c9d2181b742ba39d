"""Other CRI servers, measured if their programs are given.

Each has separate directories, sockets and a pod network, and pods that no other server sees. So cri-dockerd has a
separate engine of the same version and settings: this server would track its containers, and query Docker about them
during the measurement.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec

from integration.bench.setup import Setup
from integration.cri import Cri, connected
from integration.node import images
from integration.node.commands import NodeError, run, step
from integration.node.daemon import Daemon
from integration.node.engine import own_link
from integration.node.engines import make_engine
from integration.node.images import BUSYBOX, PAUSE, Image
from integration.node.isolation import Node, this_node
from integration.node.mounts import unmount_all
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_COMMAND_SECONDS = 60.0
_SUBNET = "10.24{}.0.0/24"
_FIRST_SUBNET = 5
"""Second octet of the first subnet is 245; the floor and the server use 10.244."""

_NRI_SOCKET = "nri.sock"

_CONTAINERD_TOML = """\
version = 3
root = "{home}/root"
state = "{home}/state"

[grpc]
  address = "{socket}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
  # A value below containerd's own needs CAP_SYS_RESOURCE, which a container that is a machine may not have.
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni_bin}"]
  conf_dir = "{cni_conf}"

[plugins.'io.containerd.internal.v1.opt']
  path = "{home}/opt"

[plugins.'io.containerd.nri.v1.nri']
  socket_path = "{home}/{nri_socket}"
  plugin_path = "{home}/nri"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A running server."""

    name: str
    version: str
    socket: Path
    cri: Cri
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    setup: Setup
    node: Node
    program: Path
    home: Path
    cni_conf: Path

    @property
    def socket(self) -> Path:
        return self.home / "cri.sock"


def known(program: Path) -> bool:
    """Return whether the benchmark can start this program."""
    return program.name in _SERVERS


@contextmanager
def running(setup: Setup, program: Path, *, number: int) -> Iterator[Rival]:
    """Run the server of a program as the `number`th server. Remaining pods are removed at the end.

    Raises NodeError if the program is missing or does not start.
    """
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs only in isolation: make bench")
    home = setup.home / f"beside-{number}"
    cni_conf = home / "cni-conf"
    cni_conf.mkdir(parents=True)
    bridge = f"beside{number}"
    (cni_conf / "10-bridge.conflist").write_bytes(
        msgspec.json.encode(
            own_network(setup.conflist, bridge=bridge, number=number, leases=home / "leases"),
        )
    )
    place = _Place(setup=setup, node=node, program=program, home=home, cni_conf=cni_conf)
    version = run([program, "--version"], timeout=_COMMAND_SECONDS).strip()
    with ExitStack() as stack:
        stack.enter_context(own_link(bridge))
        with step(f"starting {program.name}"):
            cri, pid = stack.enter_context(_SERVERS[program.name](place))
            wait_until(lambda: _ready(cri), _START_SECONDS)
        yield Rival(name=program.name, version=version, socket=place.socket, cri=cri, pid=pid)


def nri_socket(rival: Rival) -> Path:
    """Return the path of the NRI socket of a containerd."""
    return rival.socket.with_name(_NRI_SOCKET)


def own_network(conflist: dict[str, Any], *, bridge: str, number: int, leases: Path) -> dict[str, Any]:
    """Return a copy of the network with another name, bridge and subnet."""
    own: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(conflist))
    own["name"] = f"{conflist['name']}-{bridge}"
    for plugin in own["plugins"]:
        if "bridge" in plugin:
            plugin["bridge"] = bridge
        if "ipam" in plugin:
            subnet = _SUBNET.format(_FIRST_SUBNET + number)
            plugin["ipam"] |= {"ranges": [[{"subnet": subnet}]], "dataDir": str(leases)}
    return own


@contextmanager
def _containerd(place: _Place) -> Iterator[tuple[Cri, int]]:
    """Run containerd with its CRI plugin and the images. It uses the engine's runc."""
    config = place.home / "config.toml"
    config.write_text(
        _CONTAINERD_TOML.format(
            home=place.home,
            socket=place.socket,
            pause=PAUSE,
            cni_bin=place.setup.cni_bin,
            cni_conf=place.cni_conf,
            nri_socket=_NRI_SOCKET,
        )
    )
    path = [place.program.parent, *place.setup.engine.binaries, Path(os.environ["PATH"])]
    with _serving(place, ["--config", str(config)], path=path) as (cri, pid):
        wait_until(lambda: _answers(cri), _START_SECONDS)
        for image in _images(place.node):
            _import(place, image)
            _wait_seen(cri, image)
        yield cri, pid


def _import(place: _Place, image: Image) -> None:
    file = place.home / "image.tar"
    file.write_bytes(images.archive(image))
    ctr = str(place.program.with_name("ctr"))
    run([ctr, "--address", place.socket, "--namespace", "k8s.io", "images", "import", file], timeout=_COMMAND_SECONDS)
    file.unlink()


@contextmanager
def _cri_dockerd(place: _Place) -> Iterator[tuple[Cri, int]]:
    """Run cri-dockerd on an engine of the same version, with the images."""
    engine = make_engine(place.node, place.setup.engine.name, variant="-beside")
    try:
        engine.start()
        for image in _images(place.node):
            images.load(engine.api, image)
        flags = {
            "container-runtime-endpoint": f"unix://{place.socket}",
            "docker-endpoint": engine.url,
            "cri-dockerd-root-directory": place.home / "root",
            "network-plugin": "cni",
            "cni-conf-dir": place.cni_conf,
            "cni-bin-dir": place.setup.cni_bin,
            "cni-cache-dir": place.home / "cni-cache",
            "pod-infra-container-image": PAUSE,
            "streaming-bind-addr": "127.0.0.1:0",
        }
        path = [Path(os.environ["PATH"])]
        with _serving(place, [f"--{name}={value}" for name, value in flags.items()], path=path) as both:
            yield both
    finally:
        engine.close()


@contextmanager
def _serving(place: _Place, arguments: list[str], *, path: list[Path]) -> Iterator[tuple[Cri, int]]:
    """Run a server; yield a client and the process id."""
    daemon = Daemon(
        [place.program, *arguments],
        log=place.home / "server.log",
        env={**os.environ, "PATH": os.pathsep.join(map(str, path))},
    )
    daemon.start(ready=place.socket.exists, timeout=_START_SECONDS)
    try:
        with connected(place.socket) as cri:
            try:
                yield cri, daemon.pid
            finally:
                cri.remove_all()
    except BaseException:
        print(daemon.log_tail(), flush=True)
        raise
    finally:
        daemon.stop(timeout=_STOP_SECONDS)
        unmount_all(place.home)


def _images(node: Node) -> tuple[Image, ...]:
    return images.pause_image(node.busybox), images.busybox_image(node.busybox, reference=BUSYBOX)


def _wait_seen(cri: Cri, image: Image) -> None:
    """Wait until the server knows an image that was not pulled through it."""
    request = pb.ImageStatusRequest(image=pb.ImageSpec(image=image.reference))
    wait_until(lambda: cri.images.ImageStatus(request).HasField("image"), _START_SECONDS)


def _answers(cri: Cri) -> bool:
    """Return whether the server has started; until then it refuses all calls."""
    try:
        cri.runtime.Status(pb.StatusRequest())
    except grpc.RpcError:
        return False
    return True


def _ready(cri: Cri) -> bool:
    """Return whether pods can start; ignores containerd 2.2's third condition, a warning about cgroup v1."""
    if not _answers(cri):
        return False
    conditions = cri.runtime.Status(pb.StatusRequest()).status.conditions
    return all(each.status for each in conditions if each.type in {"RuntimeReady", "NetworkReady"})


_SERVERS: dict[str, Callable[[_Place], AbstractContextManager[tuple[Cri, int]]]] = {
    "containerd": _containerd,
    "cri-dockerd": _cri_dockerd,
}
"""Servers by the name of the program."""
