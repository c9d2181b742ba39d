"""A containerd with its CRI plugin next to the server under test, as on a node that migrates between runtimes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.conftest import NodeDirs
from integration.cri import Cri, connected
from integration.node.commands import run
from integration.node.daemon import Daemon
from integration.node.images import PAUSE, Image, archive
from integration.node.isolation import Node

_START_SECONDS = 60
_STOP_SECONDS = 20

# The server's network, and so the same reservations.
_CONFIG = """\
version = 2
root = "{home}/root"
state = "{home}/state"
[grpc]
address = "{home}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni_bin}"
conf_dir = "{cni_conf}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""


@contextmanager
def containerd_beside(node: Node, dirs: NodeDirs, home: Path, pause: Image) -> Iterator[Cri]:
    """Run containerd below `home` (a short path) while the block runs; yields a CRI client."""
    home.mkdir()
    (home / "config.toml").write_text(
        _CONFIG.format(home=home, pause=PAUSE, cni_bin=_plugins(dirs, home / "cni-bin"), cni_conf=dirs.cni_conf)
    )
    search = os.pathsep.join([*map(str, node.stable.path), os.environ["PATH"]])
    program, ctr = (node.stable.root / "usr/bin" / name for name in ("containerd", "ctr"))
    daemon = Daemon(
        [program, "--config", home / "config.toml"],
        log=home / "containerd.log",
        env={**os.environ, "PATH": search},
    )
    daemon.start(ready=(home / "c.sock").exists, timeout=_START_SECONDS)
    try:
        (home / "pause.tar").write_bytes(archive(pause))
        load = ["--namespace", "k8s.io", "images", "import", "--snapshotter", "native", str(home / "pause.tar")]
        run([ctr, "--address", home / "c.sock", *load], timeout=_START_SECONDS)
        with connected(home / "c.sock") as cri:
            yield cri
    finally:
        daemon.stop(timeout=_STOP_SECONDS)


def _plugins(dirs: NodeDirs, directory: Path) -> Path:
    """Link the server's plugins into one directory: this containerd takes no list of directories."""
    directory.mkdir()
    for source in (dirs.cni_more_bin, dirs.cni_bin):
        for plugin in source.iterdir():
            if plugin.is_file():
                (directory / plugin.name).symlink_to(plugin)
    return directory
