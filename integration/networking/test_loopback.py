"""Access of pods to the node's loopback addresses, where `portmap` has set `route_localnet` and no kubelet runs."""

import socket
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from integration.networking.directions import HOST_PORT, Pods, greeting, two_pods
from integration.networking.forged import answering, link_address
from integration.networking.lab import Lab, example
from integration.waiting import wait_until
from shim.netns.loopback_guard import has_guard, remove_guard

LOOPBACK = ("127.0.0.1", "127.8.9.10")


@pytest.fixture
def pods(stock: Lab) -> Iterator[Pods]:
    """Two pods on the bridge example; the first has a host port."""
    stock.use(example("10-bridge.conflist"))
    with two_pods(stock, families=()) as made:
        assert stock.node.run("sysctl -n net.ipv4.conf.cni0.route_localnet") == "1\n"
        yield made


def loopback_that_answers(pods: Pods, *, port: int | None = None) -> list[str]:
    """Return the node's loopback addresses that answer a pod. The node's bridge address always answers."""
    node, source = pods.lab.node, pods.second.addresses[4]
    gateway = f"{source.rpartition('.')[0]}.1"
    with node.call(lambda: socket.create_server(("", 0))) as service:
        control = gateway, service.getsockname()[1]
        forged = [(address, port or control[1]) for address in LOOPBACK]
        begin = partial(answering, pods.second.netns, source=source, mac=link_address(node, "cni0"))
        # This makes the node learn the pod's hardware address: a pod ignores ARP requests from a loopback address.
        assert begin(targets=[control]) == [gateway]
        *answers, last = begin(targets=[*forged, control])
    assert last == gateway
    return answers


def test_a_container_gets_no_answer_from_loopback_of_the_node(stock: Lab, pods: Pods) -> None:
    assert loopback_that_answers(pods) == []
    # Without the rule the same packets are answered. A running server would restore the rule at once.
    stock.served.server.stop()
    pods.lab.node.call(remove_guard)
    assert loopback_that_answers(pods) == list(LOOPBACK)
    stock.served.restart()
    wait_until(lambda: pods.lab.node.call(has_guard))


def test_host_ports_on_loopback_are_open_only_to_the_node(pods: Pods) -> None:
    assert greeting(pods.lab.node, "127.0.0.1", port=HOST_PORT) == "first"
    assert loopback_that_answers(pods, port=HOST_PORT) == []


def test_the_rule_survives_an_iptables_restore(pods: Pods) -> None:
    node = pods.lab.node
    saved = node.run("iptables-save")
    node.run("iptables -t raw -F")
    node.run("iptables -F INPUT")
    subprocess.run([*node.prefix, "iptables-restore"], input=saved, text=True, check=True)

    assert loopback_that_answers(pods) == []


def test_the_server_restores_a_deleted_rule(pods: Pods) -> None:
    pods.lab.node.run("nft delete table ip pydockershim")

    wait_until(lambda: loopback_that_answers(pods) == [])


def test_the_rule_stays_after_the_server_while_pods_run(stock: Lab, pods: Pods) -> None:
    stock.served.server.stop()
    assert loopback_that_answers(pods) == []

    stock.served.restart()
    assert loopback_that_answers(pods) == []


def test_a_server_without_pods_removes_the_rule_at_its_end(stock: Lab) -> None:
    stock.clear()
    assert stock.node.call(has_guard)

    stock.served.server.stop()

    assert not stock.node.call(has_guard)
    stock.served.restart()
    assert stock.node.call(has_guard)
