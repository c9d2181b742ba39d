"""A client that checks for each RPC that the events precede the answer. Works with any server."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from tests.cri.frames import Relay

SECONDS = 60
"""Limit for an RPC."""
LARGE = {"large": "x" * 8192}
"""Annotations so large that a few events fill the 64 KiB window of a client that does not read.

Several events must fit, since a reading client may lag behind on a busy machine.
"""


def channel(path: Path) -> grpc.Channel:
    """Open a separate connection, whose window does not grow."""
    return grpc.insecure_channel(
        f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    )


class Caller:
    """Event streams and RPCs on a connection through a relay that reads its frames."""

    def __init__(
        self,
        relay: Relay,
        stub: api.RuntimeServiceStub,
        *,
        readers: int,
        idle: int,
        subscribed: Callable[[Sequence[int]], object],
    ) -> None:
        """Open `readers` streams that are read and `idle` unread streams; `subscribed` waits for the server's count."""
        self._frames = relay.frames
        self._stub = stub
        self._subscribed = subscribed
        self._streams = [1 + 2 * number for number in range(readers)]
        not_read = [1 + 2 * number for number in range(readers, readers + idle)]
        self._next = 1 + 2 * (readers + idle)
        for _ in range(readers):
            threading.Thread(target=_read, args=(self._subscribe(),), daemon=True).start()
        # gRPC numbers streams in the order of their start, so streams that are read have the first numbers.
        subscribed(self._streams)
        self.idle = [self._subscribe() for _ in range(idle)]
        subscribed([*self._streams, *not_read])
        self._expected = [0] * readers
        self._expected = self._sent("Version", pb.VersionRequest())[0]

    def add_idle(self) -> None:
        """Open another unread stream in place of a dropped one."""
        number, self._next = self._next, self._next + 2
        self.idle.append(self._subscribe())
        self._subscribed([number])
        self._expected = self._sent("Version", pb.VersionRequest())[0]

    def call(self, events: int, rpc: str, request: Any) -> str:
        """Make an RPC that causes this many events; return the id in its answer, or its error."""
        self._expected = [many + events for many in self._expected]
        sent, answer = self._sent(rpc, request)
        assert sent == self._expected, rpc
        return answer

    def live(self, pod: pb.PodSandboxConfig, container: pb.ContainerConfig) -> None:
        """Run, stop and remove a pod with a container."""
        made = self.call(2, "RunPodSandbox", pb.RunPodSandboxRequest(config=pod))
        request = pb.CreateContainerRequest(pod_sandbox_id=made, config=container, sandbox_config=pod)
        inner = self.call(1, "CreateContainer", request)
        self.call(1, "StartContainer", pb.StartContainerRequest(container_id=inner))
        self.call(1, "StopContainer", pb.StopContainerRequest(container_id=inner, timeout=0))
        self.call(1, "RemoveContainer", pb.RemoveContainerRequest(container_id=inner))
        self.call(1, "StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=made))
        self.call(1, "RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=made))

    def _subscribe(self) -> Iterator[pb.ContainerEventResponse]:
        return self._stub.GetContainerEvents(pb.GetEventsRequest(), timeout=3600)

    def _sent(self, rpc: str, request: Any) -> tuple[list[int], str]:
        """Make an RPC; return the events sent on each stream before its answer, and the answer."""
        number, self._next = self._next, self._next + 2
        try:
            answer = getattr(self._stub, rpc)(request, timeout=SECONDS)
        except grpc.RpcError as error:
            reported = str(error.details())
        else:
            reported = next((str(value) for _, value in answer.ListFields()), "")
        before = self._frames.before[number]
        return [before[stream] for stream in self._streams], reported


def _read(stream: Iterator[pb.ContainerEventResponse]) -> None:
    try:
        for _ in stream:
            pass
    except grpc.RpcError:
        pass  # the end of the test
