import pytest

from shim.base.deadline import Scope
from shim.cri.admission import Admission
from shim.cri.rpcs import LIMITS, Kind
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable


def test_an_rpc_is_counted_while_it_runs() -> None:
    admission = Admission()
    stop, images = admission.enter("StopContainer", Scope()), admission.enter("ListImages", Scope())

    assert admission.names() == ["ListImages", "StopContainer"]
    assert not admission.wait_idle(0)

    admission.leave(stop)
    admission.leave(images)
    assert admission.wait_idle(0)


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_its_own_limit(kind: Kind) -> None:
    admission = Admission(limits={**LIMITS, kind: 0})
    names = {
        Kind.READ: "Status",
        Kind.IMAGE: "ImageStatus",
        Kind.WATCH: "GetContainerEvents",
        Kind.EXEC: "ExecSync",
        Kind.PULL: "PullImage",
        Kind.TEARDOWN: "StopContainer",
        Kind.CHANGE: "CreateContainer",
    }

    with pytest.raises(ResourceExhausted, match=f"{names[kind]}: 0 calls of the kind {kind.value}"):
        admission.enter(names.pop(kind), Scope())

    for name in names.values():
        admission.enter(name, Scope())


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("Status", 128),
        ("ImageStatus", 128),
        ("GetContainerEvents", 16),
        ("ExecSync", 512),
        ("PullImage", 64),
        ("StopContainer", 1024),
        ("CreateContainer", 384),
    ],
)
def test_rpcs_of_a_kind_are_limited(name: str, most: int) -> None:
    admission = Admission()
    for _ in range(most):
        admission.enter(name, Scope())

    with pytest.raises(ResourceExhausted, match=f"{name}: {most} calls of the kind"):
        admission.enter(name, Scope())


def test_a_finished_rpc_frees_its_place() -> None:
    admission = Admission(limits={**LIMITS, Kind.PULL: 1})

    for _ in range(3):
        admission.leave(admission.enter("PullImage", Scope()))


def test_a_drain_cancels_all_but_reads_and_rpcs_that_must_complete() -> None:
    admission = Admission()
    scopes = {name: Scope() for name in ("Status", "RunPodSandbox", "StopContainer", "ExecSync", "PullImage")}
    for name, scope in scopes.items():
        admission.enter(name, scope)

    admission.drain()

    assert [name for name, scope in scopes.items() if scope.cancelled] == ["StopContainer", "ExecSync", "PullImage"]
    with pytest.raises(Unavailable, match="the server is stopping"):
        admission.enter("RunPodSandbox", Scope())
    admission.enter("ListContainers", Scope())


def test_an_rpc_cancelled_by_a_drain_is_unavailable() -> None:
    admission = Admission()
    left = Cancelled("stop: the client cancelled the request")
    assert admission.cause_of(left) is left

    admission.drain()

    assert isinstance(admission.cause_of(left), Unavailable)
    other = DeadlineExceeded("too late")
    assert admission.cause_of(other) is other


def test_a_drain_waits_for_rpcs_that_must_complete() -> None:
    admission = Admission()
    run, stop = admission.enter("RunPodSandbox", Scope()), admission.enter("StopContainer", Scope())
    admission.drain()

    assert not admission.wait_completed(0.01)
    admission.leave(run)
    assert admission.wait_completed(0)
    assert not admission.wait_changes_ended(0.01)
    admission.leave(stop)
    assert admission.wait_changes_ended(0)


def test_rpcs_in_progress_are_listed_by_name() -> None:
    admission = Admission()
    for name in ("StopContainer", "ListImages", "StopContainer"):
        admission.enter(name, Scope())

    rows = admission.rows()

    assert [(row["rpc"], row["under_way"]) for row in rows] == [("StopContainer", 2), ("ListImages", 1)]
    assert all(isinstance(row["oldest_seconds"], float) for row in rows)
