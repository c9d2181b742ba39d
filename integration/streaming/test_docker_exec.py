"""Exec through Docker, with the server's own exec disabled. The tests for every exec run again."""

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
from integration.streaming.test_ends import DEATHS, marker, new_pod, test_a_stopping_server_ends_its_sessions
from integration.streaming.test_exec import *  # noqa: F403 - all its tests
from integration.waiting import wait_until

__all__ = ["marker", "new_pod", "test_a_stopping_server_ends_its_sessions"]


LINK, SUBNET = "pods9", "10.179.0.0/24"


@pytest.fixture(scope="module")
def served(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server that runs every exec through Docker."""
    dirs = make_node_dirs(node, new_home("served-by-docker"))
    (dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(dirs.cni_leases, subnets=[SUBNET], link=LINK)))
    with own_link(LINK), serving(engine, dirs, own_exec="false") as made:
        yield made


@pytest.mark.parametrize("command", ["sleep {}", "yes {}"], ids=["silent", "in full flow"])
def test_a_crash_of_docker_fails_its_sessions(
    kubectl: Kubectl, kubelet: Kubelet, served: Served, new_pod: Callable[[], None], marker: str, command: str
) -> None:
    # After each crash the server has as much to read again, but it may keep a few more threads and connections than
    # the last time. A leak would exceed every earlier count each time.
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
