"""Each invariant is violated when the node is not as it must be."""

from collections.abc import Iterator

import pytest

from integration.chaos.invariants import Invariants
from integration.chaos.plan import NewPod
from integration.chaos.pods import new_pod
from integration.chaos.target import Target, new_target
from integration.conftest import make_engine
from integration.cri import Cri, connected, pod_config
from integration.node.images import BUSYBOX
from integration.node.isolation import Node, new_home

ENGINE = "28"


@pytest.fixture(scope="module")
def target(node: Node) -> Iterator[Target]:
    make_engine(node, ENGINE, variant="-asked")  # skips where the engine is missing
    with new_target(node, ENGINE, new_home("chaos-invariants")) as made:
        yield made


@pytest.fixture(scope="module")
def cri(target: Target) -> Iterator[Cri]:
    with connected(target.server.socket) as client:
        yield client


def test_an_idle_node_has_no_violations(target: Target, cri: Cri) -> None:
    assert Invariants(target, cri).violations([]) == []


def test_objects_that_belong_to_no_pod_are_found(target: Target, cri: Cri) -> None:
    invariants = Invariants(target, cri)
    lease = target.dirs.cni_leases / "chaos" / "10.95.0.200"
    pin, checkpoint = target.dirs.netns / "cri-left", target.dirs.state / "sandboxes" / "left.json"
    order = target.dirs.state / "oci" / "left"
    order.parent.mkdir(exist_ok=True)
    lease.parent.mkdir(exist_ok=True)
    container = target.engine.api.create_container(BUSYBOX, ["true"])["Id"]
    for path in (lease, pin, checkpoint, order):
        path.touch()
    found = invariants.violations([])
    target.engine.api.remove_container(container)
    for path in (lease, pin, checkpoint, order):
        path.unlink()
    assert found == [
        f"Docker has container {container[:12]}, created, which the server does not list",
        "addresses in IPAM: 10.95.0.200 belongs to no pod",
        "pinned namespaces: cri-left belongs to no pod",
        "checkpoints: left belongs to no pod",
        "orders: left belongs to no pod",
    ]


def test_missing_pods_and_surplus_pods_are_found(target: Target, cri: Cri) -> None:
    invariants = Invariants(target, cri)
    wanted = new_pod(NewPod("wanted", "host"), logs=target.dirs.logs, volume=target.volume.path)
    assert invariants.violations([wanted]) == ["pod wanted (host) should have exactly one ready sandbox: none"]
    sandbox = cri.run(wanted.config(0))
    assert invariants.violations([wanted]) == ["containers of pod wanted (host): none"]
    other = cri.run(pod_config("other", linux=wanted.config(0).linux))
    assert invariants.violations([]) == [
        "sandbox of removed pod uid-other",
        "sandbox of removed pod uid-wanted",
    ]
    for each in (sandbox, other):
        cri.remove(each)
    assert invariants.violations([]) == []


def test_unexpected_exceptions_are_found(target: Target, cri: Cri) -> None:
    invariants = Invariants(target, cri)
    invariants.unexpected()
    with target.server.daemon.log.open("a") as log:
        log.write('{"event":"failed","exception":"Traceback (most recent call last):\\n ..."}\n')
    assert len(invariants.unexpected()) == 1
    assert invariants.unexpected() == []
