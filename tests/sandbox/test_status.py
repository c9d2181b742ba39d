import json

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.errors import InvalidArgument, NotFound
from shim.runtime import Runtime
from shim.sandbox.list import list_pod_sandbox
from shim.sandbox.status import pod_sandbox_status
from tests.pods import ready_pod, running


def test_the_status_agrees_with_the_list_and_carries_the_containers(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    answer = pod_sandbox_status(rt, sandbox_id=sandbox, verbose=False)
    (row,) = list_pod_sandbox(rt, filter=pb.PodSandboxFilter())
    for field in ("id", "metadata", "state", "created_at", "labels", "annotations", "runtime_handler"):
        assert getattr(answer.status, field) == getattr(row, field), field
    assert answer.status.linux.namespaces.options.network == pb.NODE
    assert answer.status.network.ip == ""  # the kubelet knows the address of its node
    assert [status.id for status in answer.containers_statuses] == [container]
    assert answer.timestamp > answer.status.created_at
    assert dict(answer.info) == {}


def test_verbose_tells_the_pid(rt: Runtime) -> None:
    sandbox = ready_pod(rt)
    info = json.loads(pod_sandbox_status(rt, sandbox_id=sandbox, verbose=True).info["info"])
    assert info["pid"] == rt.view.sandbox(sandbox).life.pid


def test_an_unknown_sandbox(rt: Runtime) -> None:
    with pytest.raises(NotFound, match="f" * 64):
        pod_sandbox_status(rt, sandbox_id="f" * 64, verbose=False)
    with pytest.raises(InvalidArgument):
        pod_sandbox_status(rt, sandbox_id="", verbose=False)
