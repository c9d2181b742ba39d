"""A kubelet that lists every second and subscribes to events."""

import threading
import time

import grpc

from integration.bench.machine import footprint
from integration.bench.reads.figures import Relist
from integration.cri import Cri
from integration.node.engine import Engine
from integration.server import Server
from shim.api.v1 import api_pb2 as pb

WARM_UP = 65
"""Rounds before the first sample: threads and buffers are created on first use, some by the view's comparison with
Docker, which runs every minute.
"""


class Subscriber:
    """Reads the stream of events in a thread; `events` holds them with the time of arrival."""

    def __init__(self, cri: Cri) -> None:
        self.events: list[tuple[float, pb.ContainerEventResponse]] = []
        self._stream = cri.runtime.GetContainerEvents(pb.GetEventsRequest())
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for event in self._stream:
                self.events.append((time.time(), event))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise

    def close(self) -> None:
        """End the subscription."""
        self._stream.cancel()
        self._thread.join()


def relists(cri: Cri, server: Server, engine: Engine, *, container: str, seconds: int) -> Relist:
    """List twice a second for `seconds`; `container` exits at once and is started every second."""
    subscriber = Subscriber(cri)
    _rounds(cri, engine, container=container, count=WARM_UP)
    before, began, seen = footprint(server, when="before relists"), time.monotonic(), len(subscriber.events)
    _rounds(cri, engine, container=container, count=seconds)
    after, took = footprint(server, when="after relists"), time.monotonic() - began
    events = len(subscriber.events) - seen
    subscriber.close()
    return Relist(seconds=took, before=before, after=after, events=events)


def _rounds(cri: Cri, engine: Engine, *, container: str, count: int) -> None:
    due = time.monotonic()
    for _ in range(count):
        cri.sandboxes()
        cri.containers()
        engine.api.start(container)
        due += 1
        time.sleep(max(0, due - time.monotonic()))
