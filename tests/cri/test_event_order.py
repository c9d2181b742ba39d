"""Events are sent before the answers of the RPCs that cause them, as the frames of the connection show."""

from collections.abc import Callable, Iterator, Sequence

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.base import broadcast
from shim.cri.runtime_service import RuntimeService
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from tests.cri.conftest import Serve
from tests.cri.event_order import LARGE, Caller, channel
from tests.cri.frames import Relay
from tests.fakes.engine import FakeEngine
from tests.pods import container_config, pod_config
from tests.waits import wait_until

Call = Callable[..., Caller]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop a client only after 2 s without a read: on a busy machine a reading client may pause for 100 ms."""
    monkeypatch.setattr(broadcast, "_TICKS_IDLE", 200)
    monkeypatch.setattr(broadcast, "_TICKS", 4000)


@pytest.fixture
def caller(rt: Runtime, serve: Serve) -> Iterator[Call]:
    served = serve(runtime=RuntimeService(rt))
    relay = Relay(served.path)
    relay.start()

    def wait_subscribed(streams: Sequence[int]) -> None:
        wait_until(lambda: rt.view.stats().subscribers == len(streams))

    with channel(relay.path) as connection:
        stub = api.RuntimeServiceStub(connection)
        yield lambda *, readers, idle=0: Caller(relay, stub, readers=readers, idle=idle, subscribed=wait_subscribed)
    relay.stop()


def test_every_event_is_sent_before_the_answer_of_its_rpc(caller: Call, event_rounds: int) -> None:
    calls = caller(readers=2)
    for number in range(event_rounds):
        calls.live(pod_config(f"pod{number}"), container_config())


def test_every_event_is_sent_before_the_error_of_its_rpc(caller: Call, engine: FakeEngine) -> None:
    calls = caller(readers=1)
    config = pod_config()
    pod = calls.call(2, "RunPodSandbox", pb.RunPodSandboxRequest(config=config))
    request = pb.CreateContainerRequest(pod_sandbox_id=pod, config=container_config(), sandbox_config=config)
    container = calls.call(1, "CreateContainer", request)
    calls.call(1, "StartContainer", pb.StartContainerRequest(container_id=container))
    engine.fail_next("remove_container", ShimError("remove container: device or resource busy"))
    failed = calls.call(1, "RemoveContainer", pb.RemoveContainerRequest(container_id=container))
    assert "device or resource busy" in failed


def test_a_subscriber_that_does_not_read_is_dropped_and_others_are_waited_for(rt: Runtime, caller: Call) -> None:
    calls = caller(readers=2, idle=1)
    rounds = 0
    while rt.view.stats().subscribers == 3:
        assert rounds < 100, "a client that reads nothing was never dropped"
        calls.live(pod_config(f"pod{rounds}", annotations=LARGE), container_config())
        rounds += 1
    calls.live(pod_config("last"), container_config())
    with pytest.raises(grpc.RpcError) as caught:
        list(calls.idle[0])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "has not taken a change within 2000 ms" in str(caught.value.details())
