"""The delay from Docker's event of an exit to ContainerStatus and to the event stream."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from integration.bench.reads.relists import Subscriber
from integration.cri import Cri
from integration.node.engine import Engine
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

TIMES = 20


def exits(cri: Cri, engine: Engine, *, container: str) -> dict[str, list[float]]:
    """Return the delays from Docker's event, in milliseconds; `container` runs until it is killed."""
    died = _DockerEvents(engine, container)
    subscriber = Subscriber(cri)
    took: dict[str, list[float]] = {"exit in ContainerStatus": [], "exit in GetContainerEvents": []}
    try:
        for number in range(TIMES):
            engine.api.start(container)
            wait_until(lambda: cri.container_status(container).state == pb.CONTAINER_RUNNING)
            engine.api.kill(container)
            status = _first_time(lambda: cri.container_status(container).state == pb.CONTAINER_EXITED)
            wait_until(partial(_are_published, number + 1, died=died, subscriber=subscriber))
            took["exit in ContainerStatus"].append(1000 * (status - died.times[-1]))
            took["exit in GetContainerEvents"].append(1000 * (_stopped(subscriber)[-1] - died.times[-1]))
    finally:
        subscriber.close()
        died.close()
    return took


def _are_published(count: int, *, died: "_DockerEvents", subscriber: Subscriber) -> bool:
    return len(died.times) == len(_stopped(subscriber)) == count


def _stopped(subscriber: Subscriber) -> list[float]:
    return [at for at, event in subscriber.events if event.container_event_type == pb.CONTAINER_STOPPED_EVENT]


def _first_time(condition: Callable[[], bool]) -> float:
    until = time.monotonic() + 30
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("ContainerStatus does not show the exit")
        time.sleep(0.001)
    return time.time()


class _DockerEvents:
    """Records the times of Docker's die events of a container."""

    def __init__(self, engine: Engine, container: str) -> None:
        self.times: list[float] = []
        filters: dict[str, Any] = {"container": container, "event": "die"}
        self._stream = engine.api.events(decode=True, filters=filters)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for event in self._stream:
            self.times.append(event["timeNano"] / 1e9)

    def close(self) -> None:
        self._stream.close()
        self._thread.join()
