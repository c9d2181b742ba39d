"""The stream of container events, read as a kubelet reads it; checks that each step came once and in order."""

import threading
from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise

import grpc

from integration.chaos.target import Target
from integration.cri import connected
from shim.api.v1 import api_pb2 as pb

_AGAIN_SECONDS = 0.2
_STEPS = {
    pb.CONTAINER_CREATED_EVENT: "created",
    pb.CONTAINER_STARTED_EVENT: "started",
    pb.CONTAINER_STOPPED_EVENT: "stopped",
    pb.CONTAINER_DELETED_EVENT: "deleted",
}
_ORDER = tuple(_STEPS.values())


@dataclass(frozen=True, slots=True)
class Seen:
    """An event, and the number of the server that sent it."""

    life: int
    container: str
    step: str


class Events:
    """Subscribes to container events while the block runs, again after each disconnect."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._seen: list[Seen] = []
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def __enter__(self) -> "Events":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        while self._thread.is_alive():  # the thread may be subscribing again
            call = self._call
            if call is not None:
                call.cancel()
            self._thread.join(_AGAIN_SECONDS)

    def received(self) -> list[Seen]:
        """Return the events received so far."""
        with self._lock:
            return list(self._seen)

    def _run(self) -> None:
        with connected(self._target.server.socket) as cri:
            while not self._closed.is_set():
                life = self._target.life
                try:
                    stream = cri.runtime.GetContainerEvents(pb.GetEventsRequest())
                    self._call = stream
                    for event in stream:
                        step = _STEPS[event.container_event_type]
                        with self._lock:
                            self._seen.append(Seen(life, event.container_id, step))
                except grpc.RpcError:
                    self._closed.wait(_AGAIN_SECONDS)


def event_violations(seen: list[Seen], *, restarted: Set[str] = frozenset()) -> list[str]:
    """Return the steps that one server sent twice or out of order.

    `restarted` containers may start and stop repeatedly.
    """
    steps: dict[tuple[int, str], list[str]] = defaultdict(list)
    for event in seen:
        steps[event.life, event.container].append(event.step)
    return [
        f"events of {container[:12]} from server {life}: {', '.join(came)}"
        for (life, container), came in steps.items()
        if not (_alternates(came) if container in restarted else came == sorted(set(came), key=_ORDER.index))
    ]


def _alternates(came: list[str]) -> bool:
    """Whether a container was created once, started and stopped in turn, and deleted once."""
    turns = [step for step in came if step in {"started", "stopped"}]
    rest = [came.index(step) for step in ("created", "deleted") if step in came]
    in_place = all(place in {0, len(came) - 1} for place in rest)
    return in_place and all(before != after for before, after in pairwise(turns))


def missing_events(seen: list[Seen], *, life: int, made: set[str], gone: set[str]) -> list[str]:
    """Return the steps that never came, for containers `made` and `gone` while server `life` ran."""
    steps: dict[str, set[str]] = defaultdict(set)
    for event in seen:
        if event.life == life:
            steps[event.container].add(event.step)
    wanted = [(each, ("created", "started")) for each in sorted(made)]
    wanted += [(each, ("stopped", "deleted")) for each in sorted(gone)]
    return [
        f"event {step} of {container[:12]} never came"
        for container, needed in wanted
        for step in needed
        if step not in steps[container]
    ]
