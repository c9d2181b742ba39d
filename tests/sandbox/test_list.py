from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument
from shim.runtime import Runtime
from shim.sandbox.list import list_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod

READY = pb.PodSandboxStateValue(state=pb.SANDBOX_READY)
NOT_READY = pb.PodSandboxStateValue(state=pb.SANDBOX_NOTREADY)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, {"a", "b"}),
        ({"state": READY}, {"a"}),
        ({"state": NOT_READY}, {"b"}),
        ({"label_selector": {"app": "a"}}, {"a"}),
        ({"label_selector": {"app": "a", "x": "y"}}, set()),
        ({"state": READY, "label_selector": {"app": "b"}}, set()),
    ],
)
def test_lists_are_filtered(wanted: dict[str, Any], expected: set[str], rt: Runtime, engine: FakeEngine) -> None:
    ready_pod(rt, "a")
    dead = ready_pod(rt, "b")
    engine.exit_container(dead)
    rt.view.refresh_container(dead)
    found = list_pod_sandbox(rt, filter=pb.PodSandboxFilter(**wanted))
    assert {sandbox.metadata.name for sandbox in found} == expected


def test_ids_may_be_prefixes(rt: Runtime) -> None:
    sandbox = ready_pod(rt, "a")
    ready_pod(rt, "b")
    for wanted in (sandbox, sandbox[:16]):
        (found,) = list_pod_sandbox(rt, filter=pb.PodSandboxFilter(id=wanted))
        assert found.id == sandbox


def test_a_row_has_the_requested_configuration(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    (row,) = list_pod_sandbox(rt, filter=pb.PodSandboxFilter())
    assert row.metadata == pb.PodSandboxMetadata(name="web", uid="uid-web", namespace="default")
    assert dict(row.labels) == {"app": "web"}
    assert dict(row.annotations) == {"note": "about web"}
    assert row.created_at == rt.view.sandbox(sandbox).state.created_at


def test_an_ambiguous_prefix_is_an_error_and_an_unknown_id_matches_nothing(rt: Runtime) -> None:
    sandboxes = [ready_pod(rt, str(number)) for number in range(17)]  # two ids begin with the same digit
    first = next(s[0] for s in sandboxes if sum(other[0] == s[0] for other in sandboxes) > 1)
    with pytest.raises(InvalidArgument, match=f"'{first}' fits "):
        list_pod_sandbox(rt, filter=pb.PodSandboxFilter(id=first))
    assert list_pod_sandbox(rt, filter=pb.PodSandboxFilter(id="no such")) == []
