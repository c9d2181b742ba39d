"""The client disconnects or the server crashes in the middle of a call: after Remove the node is as before."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import grpc
import pytest

from integration.cri import pod_config
from integration.pods.fault_proxy import Hold, Moment
from integration.pods.faulty_node import FaultyNode
from integration.pods.faulty_plugin import HeldPlugin
from integration.pods.kubelet import unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

CREATE, START, KILL, REMOVE = (
    "POST /containers/create",
    "POST /containers/.*/start",
    "POST /containers/.*/kill",
    "DELETE /containers/",
)
DEADLINE_SECONDS = 0.7
RUNS = 5
"""Number of typical runs that fit in the deadline."""

Leave = Callable[[FaultyNode, pb.PodSandboxConfig, Hold | HeldPlugin], None]
"""Runs a pod and abandons the call."""


@dataclass(frozen=True)
class Point:
    """A moment at which a call is held."""

    name: str
    held: Callable[[FaultyNode], AbstractContextManager[Hold | HeldPlugin]]
    unknown: bool = False
    """Whether something exists that the server does not know of."""


@contextmanager
def start_unanswered(faulty_node: FaultyNode, *, added: bool) -> Iterator[HeldPlugin]:
    """Hold Docker's answer to the start and the ADD that runs by then, before its work or once it is `added`.

    A first pod is run before: with it the server finds runc's state directory.
    """
    faulty_node.cri.remove(faulty_node.cri.run(pod_config(unused_name("first"))))
    with faulty_node.proxy.held(START, at=Moment.AFTER), faulty_node.plugin.held("ADD", done=added) as held:
        yield held


IN_RUN = (
    Point("before create", lambda f: f.proxy.held(CREATE, at=Moment.BEFORE)),
    Point("after create", lambda f: f.proxy.held(CREATE, at=Moment.AFTER), unknown=True),
    Point("before start", lambda f: f.proxy.held(START, at=Moment.BEFORE)),
    Point("after start", lambda f: f.proxy.held(START, at=Moment.AFTER)),
    Point("before ADD, start unanswered", lambda f: start_unanswered(f, added=False)),
    Point("after ADD, start unanswered", lambda f: start_unanswered(f, added=True)),
    Point("before ADD", lambda f: f.plugin.held("ADD", done=False)),
    Point("after ADD", lambda f: f.plugin.held("ADD", done=True)),
)
IN_REMOVE = (
    Point("before kill", lambda f: f.proxy.held(KILL, at=Moment.BEFORE)),
    Point("after kill", lambda f: f.proxy.held(KILL, at=Moment.AFTER)),
    Point("before DEL", lambda f: f.plugin.held("DEL", done=False)),
    Point("after DEL", lambda f: f.plugin.held("DEL", done=True)),
    Point("before remove", lambda f: f.proxy.held(REMOVE, at=Moment.BEFORE)),
    Point("after remove", lambda f: f.proxy.held(REMOVE, at=Moment.AFTER)),
)


def points(them: tuple[Point, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", [pytest.param(point, id=point.name) for point in them])


def check_usable(faulty_node: FaultyNode, config: pb.PodSandboxConfig) -> None:
    """Check that the same attempt of the pod runs."""
    sandbox = faulty_node.cri.run(config)
    assert faulty_node.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY


def cancels(_: FaultyNode) -> Leave:
    """Return a `Leave` that cancels the call at the point."""

    def leave(faulty_node: FaultyNode, config: pb.PodSandboxConfig, held: Hold | HeldPlugin) -> None:
        call = faulty_node.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        call.cancel()

    return leave


def runs_out_of_time(faulty_node: FaultyNode) -> Leave:
    """Return a `Leave` whose deadline passes at the point. The deadline is a multiple of a measured run."""
    began = time.monotonic()
    check_usable(faulty_node, pod_config(unused_name("timed")))
    faulty_node.served.clear()
    seconds = max(DEADLINE_SECONDS, RUNS * (time.monotonic() - began))

    def leave(faulty_node: FaultyNode, config: pb.PodSandboxConfig, held: Hold | HeldPlugin) -> None:
        with pytest.raises(grpc.RpcError) as over:
            faulty_node.cri.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config), timeout=seconds)
        assert over.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert held.reached(), f"the run did not come to the point in {seconds:.1f} s"

    return leave


@points(IN_RUN)
@pytest.mark.parametrize("leaving", [cancels, runs_out_of_time])
def test_an_abandoned_run_leaves_nothing(
    faulty_node: FaultyNode, point: Point, leaving: Callable[[FaultyNode], Leave]
) -> None:
    leave = leaving(faulty_node)
    config = pod_config(unused_name("left"))
    before = faulty_node.snapshot()
    with point.held(faulty_node) as held:
        leave(faulty_node, config, held)
        if point.unknown:
            wait_until(faulty_node.cri.sandboxes)
        else:
            wait_until(lambda: faulty_node.snapshot() == before)

    check_usable(faulty_node, config)
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


@points(IN_RUN)
def test_a_crash_of_the_server_in_run_leaves_nothing(faulty_node: FaultyNode, point: Point) -> None:
    config = pod_config(unused_name("crashed"))
    before = faulty_node.snapshot()
    with point.held(faulty_node) as held:
        call = faulty_node.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        faulty_node.served.server.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    faulty_node.served.restart()
    assert all(sandbox.state == pb.SANDBOX_NOTREADY for sandbox in faulty_node.cri.sandboxes())
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before
    check_usable(faulty_node, config)
    faulty_node.served.clear()


@pytest.mark.parametrize("done", [False, True], ids=["before ADD", "after ADD"])
def test_a_plugin_that_a_crashed_server_left_running_is_ended_by_the_next(faulty_node: FaultyNode, done: bool) -> None:
    config = pod_config(unused_name("crashed"))
    before = faulty_node.snapshot()
    with faulty_node.plugin.held("ADD", done=done) as held:
        call = faulty_node.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        faulty_node.served.server.kill()
        with pytest.raises(grpc.RpcError):
            call.result()
        assert not held.gone()
        faulty_node.served.restart()
        assert held.gone()

    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


@points(IN_REMOVE)
def test_a_crash_of_the_server_in_remove_leaves_nothing(faulty_node: FaultyNode, point: Point) -> None:
    before = faulty_node.snapshot()
    sandbox = faulty_node.cri.run(pod_config(unused_name("crashed")))
    with point.held(faulty_node) as held:
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
        call = faulty_node.cri.runtime.RemovePodSandbox.future(request)
        held.wait_reached()
        faulty_node.served.server.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    faulty_node.served.restart()
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, id=p.name)
        for p in IN_RUN
        if p.name in {"before start", "after ADD", "before ADD, start unanswered", "after ADD, start unanswered"}
    ],
)
def test_a_crash_of_docker_in_run_leaves_nothing(faulty_node: FaultyNode, point: Point) -> None:
    before = faulty_node.snapshot()
    config = pod_config(unused_name("crashed"))
    with point.held(faulty_node) as held:
        call = faulty_node.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        faulty_node.served.engine.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    faulty_node.served.engine.start()
    faulty_node.served.wait_answers()
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before
    check_usable(faulty_node, config)
    faulty_node.served.clear()


def test_a_finished_pod_survives_a_crash_of_the_server(faulty_node: FaultyNode) -> None:
    before = faulty_node.snapshot()
    config = pod_config(unused_name("survivor"), labels={"app": "web"}, annotations={"note": "kept"})
    sandbox = faulty_node.cri.run(config)
    status = faulty_node.cri.sandbox_status(sandbox)

    faulty_node.served.server.kill()
    faulty_node.served.restart()

    assert faulty_node.cri.sandbox_status(sandbox) == status
    assert faulty_node.cri.run(config) == sandbox
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


def test_a_repeated_run_returns_the_sandbox_whose_answer_was_lost(faulty_node: FaultyNode) -> None:
    # The kubelet repeats the same attempt after a timeout.
    before = faulty_node.snapshot()
    config = pod_config(unused_name("lost"))
    first = faulty_node.cri.run(config)

    assert faulty_node.cri.run(config) == first
    assert len(faulty_node.cri.sandboxes()) == 1
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


def test_a_server_that_is_told_to_stop_finishes_a_run(faulty_node: FaultyNode) -> None:
    config = pod_config(unused_name("orderly"))
    with faulty_node.plugin.before("ADD", f"echo $$ >{faulty_node.served.dirs.logs}/adding; sleep 1"):
        call = faulty_node.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        wait_until((faulty_node.served.dirs.logs / "adding").exists)
        faulty_node.served.server.stop()
    sandbox = call.result().pod_sandbox_id

    faulty_node.served.restart()
    assert faulty_node.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY
    faulty_node.served.clear()
