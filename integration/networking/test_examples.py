"""Every example on a node whose Docker has set FORWARD to DROP."""

import threading
from collections.abc import Callable

import pytest

from integration.networking.directions import HOST_PORT, Pods, connect, greeting, two_pods
from integration.networking.lab import (
    NODE,
    OUTSIDE,
    Lab,
    example,
    example_names,
    with_ipv6,
    without_firewall,
)
from integration.networking.table import IMPOSSIBLE, tries
from integration.waiting import wait_until
from shim.cni.host_ports import RULE

DROP_SECONDS = 60.0
"""Timeout of a connection attempt, and of the wait for its dropped packets."""

FAMILIES = (4, 6)


@pytest.mark.parametrize("name", example_names())
def test_every_direction_works(stock: Lab, name: str) -> None:
    if name in IMPOSSIBLE:
        pytest.skip(IMPOSSIBLE[name])
    stock.use(with_ipv6(example(name)))

    with two_pods(stock, families=FAMILIES) as pods:
        seen = {(direction, family): connect(pods, direction, family) for direction, family in tries(name)}

    assert seen == dict.fromkeys(seen, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_pods_reach_no_address_without_the_firewall_plugin(stock: Lab, family: int) -> None:
    stock.use(with_ipv6(without_firewall(example("10-bridge.conflist"))))

    with two_pods(stock, families=FAMILIES) as pods:
        assert connect(pods, "node to pod", family) == ""
        _assert_drops(pods, lambda: greeting(pods.first.netns, OUTSIDE[family], seconds=DROP_SECONDS), family=family)
        to_pod = pods.first.addresses[family]
        _assert_drops(pods, lambda: greeting(pods.second.netns, to_pod, seconds=DROP_SECONDS), family=family)


@pytest.mark.parametrize("family", FAMILIES)
def test_host_ports_need_the_servers_rule(stock: Lab, family: int) -> None:
    stock.use(with_ipv6(example("10-bridge.conflist")))

    with two_pods(stock, families=FAMILIES) as pods:
        command = "ip6tables" if family == 6 else "iptables"
        rules = [line for line in stock.node.run(f"{command} -S CNI-ADMIN").splitlines() if "pydockershim" in line]
        stock.node.run(f"{command} -F CNI-ADMIN")
        _assert_drops(
            pods, lambda: greeting(stock.outside, NODE[family], port=HOST_PORT, seconds=DROP_SECONDS), family=family
        )

    assert len(rules) == 1
    assert all(word in rules[0] for word in ("--ctstate DNAT", RULE[-1]))


def _assert_drops(pods: Pods, try_it: Callable[[], str], *, family: int) -> None:
    """Assert that a connection fails because of the policy of FORWARD."""
    before = pods.lab.dropped(family)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(try_it()))
    client.start()
    wait_until(lambda: pods.lab.dropped(family) > before or answers, DROP_SECONDS)
    seen = list(answers)
    with pods.lab.forwarding(family):
        client.join()

    assert seen == []
    assert len(answers) == 1
