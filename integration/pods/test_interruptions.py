"""The client goes away, or the server crashes, in the middle of a call: the node is as before once all is removed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import grpc
import pytest

from integration.cri import pod_config
from integration.pods.frail import Frail
from integration.pods.kubelet import unused_name
from integration.pods.plugin import HeldPlugin
from integration.pods.wire import Hold, Moment
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

CREATE, START, KILL, REMOVE = (
    "POST /containers/create",
    "POST /containers/.*/start",
    "POST /containers/.*/kill",
    "DELETE /containers/",
)
DEADLINE_SECONDS = 0.7

Leave = Callable[[Frail, pb.PodSandboxConfig, Hold | HeldPlugin], None]
"""How a client that runs a pod goes away."""


@dataclass(frozen=True)
class Point:
    """A moment at which a call stands still."""

    name: str
    held: Callable[[Frail], AbstractContextManager[Hold | HeldPlugin]]
    unknown: bool = False
    """Whether something was made that the server has not been told of."""


IN_RUN = (
    Point("before create", lambda f: f.wire.held(CREATE, at=Moment.BEFORE)),
    Point("after create", lambda f: f.wire.held(CREATE, at=Moment.AFTER), unknown=True),
    Point("before start", lambda f: f.wire.held(START, at=Moment.BEFORE)),
    Point("after start", lambda f: f.wire.held(START, at=Moment.AFTER)),
    Point("before ADD", lambda f: f.plugin.held("ADD", done=False)),
    Point("after ADD", lambda f: f.plugin.held("ADD", done=True)),
)
IN_REMOVE = (
    Point("before kill", lambda f: f.wire.held(KILL, at=Moment.BEFORE)),
    Point("after kill", lambda f: f.wire.held(KILL, at=Moment.AFTER)),
    Point("before DEL", lambda f: f.plugin.held("DEL", done=False)),
    Point("after DEL", lambda f: f.plugin.held("DEL", done=True)),
    Point("before remove", lambda f: f.wire.held(REMOVE, at=Moment.BEFORE)),
    Point("after remove", lambda f: f.wire.held(REMOVE, at=Moment.AFTER)),
)


def points(them: tuple[Point, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", [pytest.param(point, id=point.name) for point in them])


def check_usable(frail: Frail, config: pb.PodSandboxConfig) -> None:
    """Run the pod of the same attempt."""
    sandbox = frail.cri.run(config)
    assert frail.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY


def cancel(frail: Frail, config: pb.PodSandboxConfig, held: Hold | HeldPlugin) -> None:
    call = frail.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
    held.wait_reached()
    call.cancel()


def let_the_deadline_pass(frail: Frail, config: pb.PodSandboxConfig, held: Hold | HeldPlugin) -> None:
    with pytest.raises(grpc.RpcError) as over:
        frail.cri.runtime.RunPodSandbox(pb.RunPodSandboxRequest(config=config), timeout=DEADLINE_SECONDS)
    assert over.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    held.wait_reached()


@points(IN_RUN)
@pytest.mark.parametrize("leave", [cancel, let_the_deadline_pass], ids=["cancels", "runs out of time"])
def test_a_client_that_leaves_leaves_nothing(frail: Frail, point: Point, leave: Leave) -> None:
    config = pod_config(unused_name("left"))
    before = frail.traces()
    with point.held(frail) as held:
        leave(frail, config, held)
        if point.unknown:
            wait_until(frail.cri.sandboxes)
        else:
            wait_until(lambda: frail.traces() == before)

    check_usable(frail, config)
    frail.served.clear()
    assert frail.traces() == before


@points(IN_RUN)
def test_a_crash_of_the_server_in_run_leaves_nothing(frail: Frail, point: Point) -> None:
    config = pod_config(unused_name("crashed"))
    before = frail.traces()
    with point.held(frail) as held:
        call = frail.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        frail.served.server.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    frail.served.restart()
    assert all(sandbox.state == pb.SANDBOX_NOTREADY for sandbox in frail.cri.sandboxes())
    frail.served.clear()
    assert frail.traces() == before
    check_usable(frail, config)
    frail.served.clear()


@pytest.mark.parametrize("done", [False, True], ids=["before ADD", "after ADD"])
def test_a_plugin_that_a_crashed_server_left_running_is_ended_by_the_next(frail: Frail, done: bool) -> None:
    config = pod_config(unused_name("crashed"))
    before = frail.traces()
    with frail.plugin.held("ADD", done=done) as held:
        call = frail.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        frail.served.server.kill()
        with pytest.raises(grpc.RpcError):
            call.result()
        assert not held.gone()
        frail.served.restart()
        assert held.gone()

    frail.served.clear()
    assert frail.traces() == before


@points(IN_REMOVE)
def test_a_crash_of_the_server_in_remove_leaves_nothing(frail: Frail, point: Point) -> None:
    before = frail.traces()
    sandbox = frail.cri.run(pod_config(unused_name("crashed")))
    with point.held(frail) as held:
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
        call = frail.cri.runtime.RemovePodSandbox.future(request)
        held.wait_reached()
        frail.served.server.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    frail.served.restart()
    frail.served.clear()
    assert frail.traces() == before


@pytest.mark.parametrize(
    "point", [pytest.param(p, id=p.name) for p in IN_RUN if p.name in {"before start", "after ADD"}]
)
def test_a_crash_of_docker_in_run_leaves_nothing(frail: Frail, point: Point) -> None:
    before = frail.traces()
    config = pod_config(unused_name("crashed"))
    with point.held(frail) as held:
        call = frail.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        held.wait_reached()
        frail.served.engine.kill()
    with pytest.raises(grpc.RpcError):
        call.result()

    frail.served.engine.start()
    frail.served.wait_answers()
    frail.served.clear()
    assert frail.traces() == before
    check_usable(frail, config)
    frail.served.clear()


def test_a_finished_pod_survives_a_crash_of_the_server(frail: Frail) -> None:
    before = frail.traces()
    config = pod_config(unused_name("survivor"), labels={"app": "web"}, annotations={"note": "kept"})
    sandbox = frail.cri.run(config)
    status = frail.cri.sandbox_status(sandbox)

    frail.served.server.kill()
    frail.served.restart()

    assert frail.cri.sandbox_status(sandbox) == status
    assert frail.cri.run(config) == sandbox
    frail.served.clear()
    assert frail.traces() == before


def test_an_answer_that_got_lost_is_given_again(frail: Frail) -> None:
    # The kubelet asks again for the same attempt when it saw a timeout.
    before = frail.traces()
    config = pod_config(unused_name("lost"))
    first = frail.cri.run(config)

    assert frail.cri.run(config) == first
    assert len(frail.cri.sandboxes()) == 1
    frail.served.clear()
    assert frail.traces() == before


def test_a_stop_in_order_lets_a_run_finish(frail: Frail) -> None:
    config = pod_config(unused_name("orderly"))
    with frail.plugin.before("ADD", f"echo $$ >{frail.served.dirs.logs}/adding; sleep 1"):
        call = frail.cri.runtime.RunPodSandbox.future(pb.RunPodSandboxRequest(config=config))
        wait_until((frail.served.dirs.logs / "adding").exists)
        frail.served.server.stop()
    sandbox = call.result().pod_sandbox_id

    frail.served.restart()
    assert frail.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY
    frail.served.clear()
