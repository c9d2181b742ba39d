"""Exec where Docker runs the commands: the server's own exec is off. What holds for every exec is tested once more."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet
from integration.streaming.conftest import SECONDS, Kubectl
from integration.streaming.leftovers import Leftovers, processes
from integration.streaming.test_ends import DEATHS, marker, new_pod, test_a_server_that_stops_ends_its_sessions
from integration.streaming.test_exec import *  # noqa: F403 - all that it has
from integration.waiting import wait_until

__all__ = ["marker", "new_pod", "test_a_server_that_stops_ends_its_sessions"]


LINK, SUBNET = "pods9", "10.179.0.0/24"


@pytest.fixture(scope="module")
def served(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server that leaves every exec to Docker."""
    dirs = make_node_dirs(node, new_home("served-by-docker"))
    (dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(dirs.cni_leases, subnets=[SUBNET], link=LINK)))
    with own_link(LINK), serving(engine, dirs, own_exec="false") as made:
        yield made


@pytest.mark.parametrize("command", ["sleep {}", "yes {}"], ids=["silent", "in full flow"])
def test_docker_that_dies_fails_its_sessions(
    kubectl: Kubectl, kubelet: Kubelet, served: Served, new_pod: Callable[[], None], marker: str, command: str
) -> None:
    # After each death there is as much to be read again, but a server may keep a few more threads and connections
    # for it than the last time. What leaks, leaks each time, and is more than there ever was.
    most = Leftovers(threads=0, descriptors=0)
    for _ in range(DEATHS):
        new_pod()
        client = kubectl.begin("exec", "-i", "lone", "--", *command.format(marker).split())
        wait_until(lambda: processes(marker))
        killed_and_started(served, client)
        wait_until(lambda: not processes(marker))
        kubelet.remove_all()
        after = Leftovers.of(served)
        if after <= most:
            return
        most = most.most(after)
    pytest.fail(f"each of {DEATHS} deaths left something behind")


def killed_and_started(served: Served, client: "subprocess.Popen[bytes]") -> None:
    served.engine.kill()
    try:
        client.communicate(timeout=SECONDS)
        assert client.returncode != 0
    finally:
        served.engine.start()
        served.wait_answers()
