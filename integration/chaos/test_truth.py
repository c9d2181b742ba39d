"""What must be true is missed when it is not."""

from collections.abc import Iterator

import pytest

from integration.chaos.bed import Bed, made_bed
from integration.chaos.plan import NewPod
from integration.chaos.pods import new_pod
from integration.chaos.truth import Truth
from integration.conftest import make_engine
from integration.cri import Cri, connected, pod_config
from integration.node.box import Node, new_home
from integration.node.images import BUSYBOX

ENGINE = "28"


@pytest.fixture(scope="module")
def bed(node: Node) -> Iterator[Bed]:
    make_engine(node, ENGINE, variant="-asked")  # skips where there is none
    with made_bed(node, ENGINE, new_home("chaos-truth")) as made:
        yield made


@pytest.fixture(scope="module")
def cri(bed: Bed) -> Iterator[Cri]:
    with connected(bed.server.socket) as client:
        yield client


def test_nothing_is_missed_on_an_idle_node(bed: Bed, cri: Cri) -> None:
    assert Truth(bed, cri).faults([]) == []


def test_what_belongs_to_no_pod_is_found(bed: Bed, cri: Cri) -> None:
    truth = Truth(bed, cri)
    lease = bed.dirs.cni_leases / "chaos" / "10.95.0.200"
    pin, checkpoint = bed.dirs.netns / "cri-left", bed.dirs.state / "sandboxes" / "left.json"
    lease.parent.mkdir(exist_ok=True)
    container = bed.engine.api.create_container(BUSYBOX, ["true"])["Id"]
    for path in (lease, pin, checkpoint):
        path.touch()
    found = truth.faults([])
    bed.engine.api.remove_container(container)
    for path in (lease, pin, checkpoint):
        path.unlink()
    assert found == [
        f"Docker has container {container[:12]}, created, which is not listed",
        "addresses in IPAM: 10.95.0.200 is there and belongs to no pod",
        "pinned namespaces: cri-left is there and belongs to no pod",
        "checkpoints: left is there and belongs to no pod",
    ]


def test_pods_that_are_not_there_and_others_that_are_too_many_are_found(bed: Bed, cri: Cri) -> None:
    truth = Truth(bed, cri)
    wanted = new_pod(NewPod("wanted", "host"), logs=bed.dirs.logs, volume=bed.volume.path)
    assert truth.faults([wanted]) == ["pod wanted (host) has not one ready sandbox: none"]
    sandbox = cri.run(wanted.config(0))
    assert truth.faults([wanted]) == ["containers of pod wanted (host): none"]
    other = cri.run(pod_config("other", linux=wanted.config(0).linux))
    assert truth.faults([]) == ["a sandbox of uid-other, which is gone", "a sandbox of uid-wanted, which is gone"]
    for each in (sandbox, other):
        cri.remove(each)
    assert truth.faults([]) == []


def test_unexpected_exceptions_are_found(bed: Bed, cri: Cri) -> None:
    truth = Truth(bed, cri)
    truth.unexpected()
    with bed.server.daemon.log.open("a") as log:
        log.write('{"event":"failed","exception":"Traceback (most recent call last):\\n ..."}\n')
    assert len(truth.unexpected()) == 1
    assert truth.unexpected() == []
