"""A server whose surroundings can fail: the connection to Docker, the CNI plugin, and the disk with its state."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from integration.conftest import NodeDirs, Served, serving
from integration.cri import Cri
from integration.networks import bridge, conflist
from integration.node import images
from integration.node.commands import allowed
from integration.node.disk import Disk
from integration.node.engine import Engine, own_link
from integration.node.images import Image
from integration.node.leak_check import NodeSnapshot
from integration.pods.fault_proxy import FaultProxy
from integration.pods.faulty_plugin import TYPE, FaultyPlugin
from integration.pods.kubelet import wait_image, wait_no_image

PLUGIN_SECONDS = int(allowed(2))
"""This server's timeout of CNI plugins."""

PAUSE = "127.0.0.1:9/pause:faulty"
"""Name of its pause image, in a registry that refuses connections."""

_LINK = "faulty0"


@dataclass(frozen=True, slots=True)
class FaultyNode:
    """The server and its surroundings that can fail."""

    served: Served
    proxy: FaultProxy
    plugin: FaultyPlugin
    disk: Disk
    pause_image: Image

    @property
    def cri(self) -> Cri:
        """A CRI client of the server."""
        return self.served.cri

    def snapshot(self) -> tuple[NodeSnapshot, frozenset[str]]:
        """Return everything a pod could leave behind, and the CNI results in the cache."""
        return self.served.snapshot(), frozenset(path.name for path in self.served.dirs.cni_cache.glob("*/*"))

    @contextmanager
    def without_pause_image(self) -> Iterator[None]:
        """Remove the pause image while the block runs; no registry has it."""
        api = self.served.engine.api
        api.remove_image(self.pause_image.reference, force=True)
        wait_no_image(self.cri, self.pause_image.reference)
        try:
            yield
        finally:
            images.load(api, self.pause_image)
            wait_image(self.cri, self.pause_image.reference)

    @contextmanager
    def with_pause_that_cannot_start(self) -> Iterator[None]:
        """Give the pause image a missing command while the block runs; runc finds out late in a start."""
        with self.without_pause_image():
            config = {**self.pause_image.config, "Entrypoint": ["/missing"]}
            images.load(self.served.engine.api, replace(self.pause_image, config=config))
            wait_image(self.cri, self.pause_image.reference)
            yield
            self.served.engine.api.remove_image(self.pause_image.reference, force=True)
            wait_no_image(self.cri, self.pause_image.reference)


@contextmanager
def run_faulty_node(engine: Engine, dirs: NodeDirs, pause_image: Image) -> Iterator[FaultyNode]:
    """Run the server and its surroundings while the block runs."""
    pause_image = replace(pause_image, reference=PAUSE)
    images.load(engine.api, pause_image)
    plugin = FaultyPlugin(dirs.cni_more_bin, real=dirs.cni_bin / "bridge")
    network = bridge(dirs.cni_leases, kind=TYPE, link=_LINK, subnets=("10.93.0.0/16",))
    (dirs.cni_conf / "10-faulty.conflist").write_text(conflist(network, name="faulty"))
    disk = Disk(dirs.state)
    with own_link(_LINK), disk.mounted(), FaultProxy(engine.socket, path=dirs.socket.with_suffix(".docker")) as proxy:
        settings = {
            "docker_endpoint": f"unix://{proxy.path}",
            "cni_plugin_timeout": PLUGIN_SECONDS,
            "pod_infra_container_image": PAUSE,
            "own_exec": "false",  # tests inject faults into Docker's exec
        }
        with serving(engine, dirs, **settings) as served:
            yield FaultyNode(served, proxy, plugin, disk, pause_image)
