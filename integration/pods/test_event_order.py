"""Events are sent before the answers of the RPCs that caused them, with real Docker and CNI."""

from collections.abc import Iterator, Sequence

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.pods.kubelet import unused_name
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.api.v1.api_pb2_grpc import RuntimeServiceStub
from tests.cri.event_order import LARGE, Caller, channel
from tests.cri.frames import Relay

DROPPED_AFTER = 5
"""Number of pods, each with eight events of 8 KiB: many times the buffer of a client that does not read."""


@pytest.fixture
def relay(served: Served) -> Relay:
    return Relay(served.server.socket)


def check_dropped(stream: Iterator[pb.ContainerEventResponse]) -> None:
    """Check that the stream of a client that has not read ends with an error."""
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_events_are_sent_before_answers_although_a_client_of_three_does_not_read(
    served: Served, images: Images, relay: Relay, request: pytest.FixtureRequest
) -> None:
    relay.start()

    def wait_subscribed(streams: Sequence[int]) -> None:
        def live() -> bool:
            config = pod_config(unused_name("first"))
            pod = served.cri.run(config)
            served.cri.stop(pod)
            served.cri.remove(pod)
            return all(number in relay.frames.messages for number in streams)

        wait_until(live)

    with channel(relay.path) as connection:
        calls = Caller(relay, RuntimeServiceStub(connection), readers=2, idle=1, subscribed=wait_subscribed)
        for number in range(request.config.getoption("--event-pods")):
            if number and number % DROPPED_AFTER == 0:
                check_dropped(calls.idle.pop())
                calls.add_idle()
            pod = pod_config(unused_name("pod"), annotations=LARGE)
            calls.live(pod, container_config(unused_name("c"), image=images.busybox))
        check_dropped(calls.idle.pop())
    relay.stop()
    assert not served.cri.runtime.ListContainers(pb.ListContainersRequest()).containers
