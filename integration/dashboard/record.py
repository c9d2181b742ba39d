"""Record the dashboard's data for a node at work: `make dashboard-recording`, about eight minutes in isolation."""

import sys
import time

from integration.conftest import make_node_dirs, serving
from integration.dashboard.life import SECONDS, SUBNET, Life, live, published
from integration.dashboard.prometheus import SCRAPE_SECONDS, Prometheus, running
from integration.dashboard.recording import Recording, complete, queries, save
from integration.networks import bridge, conflist
from integration.node import images
from integration.node.commands import NodeError
from integration.node.engine import own_link
from integration.node.engines import make_engine
from integration.node.isolation import Node, new_home, this_node
from integration.node.registry import Registry
from integration.server import PROGRAM
from integration.waiting import wait_until
from shim.nri.plugin import ALL_EVENTS, VALIDATE
from tests.nri.plugin import connected

ENGINE = "28"
ADDRESS = "127.0.0.1:9180"
"""The address that prometheus.yml scrapes."""
LINK = "recorded0"
_OF_PODS = ALL_EVENTS & ~VALIDATE.mask
"""Events to which the NRI plugin of the recording subscribes."""


def main() -> int:
    """Record, and store the recording."""
    node = this_node()
    if node is None:
        print("record: runs only in isolation: make dashboard-recording", file=sys.stderr)
        return 1
    try:
        recording = record(node)
    except NodeError as cause:
        print(f"record: {cause}", file=sys.stderr)
        return 1
    save(recording)
    empty = [query for query, series in recording.queries.items() if not any(each.present for each in series)]
    for query in empty:
        print(f"no series: {query}", file=sys.stderr)
    return 1 if empty else 0


def record(node: Node) -> Recording:
    """Record the life of a node. Raises NodeError if setup fails."""
    home = new_home("recorded")
    dirs = make_node_dirs(node, home)
    network = bridge(dirs.cni_leases, subnets=[SUBNET], link=LINK), {"type": "portmap", "capabilities": {}}
    (dirs.cni_conf / "10-pods.conflist").write_text(conflist(*network))
    engine = make_engine(node, ENGINE, settings={"live-restore": True})
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=new_home("registry"))
    try:
        with own_link(LINK):
            engine.start()
            registry.start()
            images.load(engine.api, images.pause_image(node.busybox))
            images.load(engine.api, images.busybox_image(node.busybox))
            with (
                serving(engine, dirs, PROGRAM, metrics_bind_addr=ADDRESS) as served,
                connected(served.server.nri_socket, "10", "inventory", events=_OF_PODS),
                running(node.monitoring.root / "usr/bin/prometheus", home / "prometheus") as prometheus,
            ):
                references = published(served, node, registry)
                wait_until(lambda: prometheus.has('up{job="pydockershim"} == 1'))
                start = time.time()
                life = Life(served, references)
                live(life)
                return recorded(prometheus, life, start=start, docker=engine.version)
    finally:
        registry.stop()
        engine.close()


def recorded(prometheus: Prometheus, life: Life, *, start: float, docker: str) -> Recording:
    """Return Prometheus's data for this life."""
    points = SECONDS // SCRAPE_SECONDS + 1
    return Recording(
        docker=docker.partition("+")[0],
        prometheus=prometheus.version(),
        step=SCRAPE_SECONDS,
        points=points,
        events=life.events,
        queries={
            query: prometheus.series(complete(query), start=start, step=SCRAPE_SECONDS, points=points)
            for query in dict.fromkeys(queries())
        },
    )


if __name__ == "__main__":
    sys.exit(main())
