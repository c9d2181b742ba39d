"""GC of CNI 1.1 with recent plugins, which accept it, and a chained plugin that frees addresses."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import pod_config
from integration.networking.reaper import install
from integration.networks import bridge, reserved
from integration.node.engine import Engine, remove_link
from integration.node.isolation import Node
from integration.waiting import wait_until

LINK, NETWORK = "gc0", "collected"
OF_ANOTHER = "d" * 64


@dataclass(frozen=True, slots=True)
class Collected:
    """A server whose plugins get GC every second."""

    served: Served
    asked: Path
    broken: Path

    def leases(self) -> dict[str, str]:
        """Map each reserved address to its container id."""
        return reserved(self.served.dirs.cni_leases / NETWORK)

    def last_gc(self) -> list[dict[str, str]]:
        """Wait for the plugin's next GC, and return its valid attachments."""
        self.asked.unlink(missing_ok=True)
        config: dict[str, Any] = wait_until(self._config)
        assert (config["name"], config["cniVersion"]) == (NETWORK, "1.1.0")
        return list(config["cni.dev/valid-attachments"])

    def _config(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.asked.read_text()))
        except (FileNotFoundError, ValueError):  # or half written
            return {}

    def lose(self, sandbox: str) -> None:
        """Kill the server, and delete state and container of a pod."""
        self.served.server.kill()
        (found,) = (self.served.dirs.state / "sandboxes").glob(f"{sandbox}*")
        found.unlink()
        self.served.engine.api.remove_container(sandbox, force=True)
        self.served.restart()


@pytest.fixture
def collected(
    engine: Engine,
    images: Images,  # noqa: ARG001 - images must be there
    node: Node,
    node_dirs: NodeDirs,
    tmp_path: Path,
) -> Iterator[Collected]:
    if node.newer_plugins is None:
        pytest.skip(node.newer_plugins_missing)
    for program in (node.newer_plugins.root / "usr/lib/cni").iterdir():
        (node_dirs.cni_more_bin / program.name).symlink_to(program)
    install(node_dirs.cni_more_bin)
    asked, broken = tmp_path / "asked", tmp_path / "broken"
    leases = node_dirs.cni_leases / NETWORK
    reaper = {"type": "reaper", "leases": str(leases), "asked": str(asked), "broken": str(broken)}
    plugins = [
        bridge(node_dirs.cni_leases, link=LINK, subnets=("10.93.0.0/16", "fd00:93::/64"), ipMasq=True),
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
        reaper,
    ]
    network = {"cniVersion": "1.1.0", "name": NETWORK, "plugins": plugins}
    (node_dirs.cni_conf / "10-collected.conflist").write_text(json.dumps(network))
    try:
        with serving(engine, node_dirs, cni_gc_interval=1) as served:
            yield Collected(served, asked, broken)
    finally:
        remove_link(LINK)


def attachments(*containers: str) -> list[dict[str, str]]:
    return [{"containerID": container, "ifname": "eth0"} for container in sorted(containers)]


def lease_of_another(collected: Collected) -> Path:
    """Write a reservation as host-local does for another runtime, until a GC knows its attachment and keeps it."""
    lease = collected.served.dirs.cni_leases / NETWORK / "10.93.7.7"
    while attachments(OF_ANOTHER)[0] not in collected.last_gc() or not lease.exists():
        lease.write_bytes(f"{OF_ANOTHER}\r\neth0".encode())
    return lease


def test_gc_keeps_live_attachments_and_frees_other_leases(collected: Collected) -> None:
    cri = collected.served.cri
    alive, dead, removed = (cri.run(pod_config(name)) for name in ("alive", "dead", "removed"))
    cri.remove(removed)
    theirs = lease_of_another(collected)

    collected.broken.touch()
    collected.lose(dead)

    wait_until(lambda: collected.last_gc() == attachments(alive, OF_ANOTHER))
    wait_until(lambda: set(collected.leases().values()) == {alive, OF_ANOTHER})
    assert (collected.served.dirs.cni_cache / "results" / f"{NETWORK}-{dead}-eth0").exists()  # DEL still fails
    assert cri.sandbox_status(alive).network.ip in collected.leases()

    collected.broken.unlink()

    wait_until(lambda: not list((collected.served.dirs.cni_cache / "results").glob(f"*{dead}*")))
    assert collected.last_gc() == attachments(alive, OF_ANOTHER)
    cri.remove(alive)
    wait_until(lambda: collected.last_gc() == attachments(OF_ANOTHER))
    lines = collected.served.server.daemon.log.read_text().splitlines()
    assert [line for line in lines if "CNI GC failed" in line] == []
    theirs.unlink()
