"""A plugin: its identity, the events, and their delivery."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition
from shim.nri import wire
from shim.nri.connection import Connection, PluginFailed

MAX_NAME = 64
"""Maximum characters of a plugin's name."""

ALL_EVENTS = (1 << nri.LAST - 1) - 1
"""The bits of all events; event n has bit n-1."""

_NAME = re.compile(r"[a-zA-Z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")

A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Identity:
    """The name of a plugin, and the index that sorts plugins."""

    index: str
    name: str

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"


def identity(index: str, name: str) -> Identity:
    """Return the identity of a plugin. Raise FailedPrecondition if index or name is malformed."""
    if not _INDEX.fullmatch(index):
        raise FailedPrecondition(f"the index of a plugin must have two digits: {index[:MAX_NAME]!r}")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise FailedPrecondition(f"{name[:MAX_NAME]!r} is not a valid name of a plugin")
    return Identity(index, name)


def identity_of_file(name: str) -> Identity:
    """Return the identity of a plugin from its file name, such as `10-logger`."""
    index, _, rest = name.partition("-")
    return identity(index, rest)


@dataclass(frozen=True, slots=True)
class Event:
    """An NRI event, and the call that delivers it."""

    number: int
    method: str
    answer: type[Message]
    to_state_change: Callable[[Message], nri.StateChangeEvent] | None = None
    """Converts the request to StateChange, the only event call of older plugins; None if StateChange cannot hold it."""

    @property
    def mask(self) -> int:
        """The event's bit."""
        return 1 << self.number - 1


Request: TypeAlias = Message


def _state_change(event: "nri.Event") -> Callable[[Message], nri.StateChangeEvent]:
    def convert(request: Message) -> nri.StateChangeEvent:
        container = getattr(request, "container", None)
        pod: nri.PodSandbox = getattr(request, "pod")  # noqa: B009 - every request of an event has it
        return nri.StateChangeEvent(event=event, pod=pod, container=container)

    return convert


def _plain(event: "nri.Event", answer: type[Message]) -> Event:
    """Return an event with an empty answer."""
    method = answer.DESCRIPTOR.name.removesuffix("Response")
    return Event(event, method, answer, to_state_change=_state_change(event))


RUN_POD_SANDBOX = _plain(nri.RUN_POD_SANDBOX, nri.RunPodSandboxResponse)
STOP_POD_SANDBOX = _plain(nri.STOP_POD_SANDBOX, nri.StopPodSandboxResponse)
REMOVE_POD_SANDBOX = _plain(nri.REMOVE_POD_SANDBOX, nri.RemovePodSandboxResponse)
UPDATE_POD_SANDBOX = Event(nri.UPDATE_POD_SANDBOX, "UpdatePodSandbox", nri.UpdatePodSandboxResponse)
POST_UPDATE_POD_SANDBOX = _plain(nri.POST_UPDATE_POD_SANDBOX, nri.PostUpdatePodSandboxResponse)
CREATE_CONTAINER = Event(nri.CREATE_CONTAINER, "CreateContainer", nri.CreateContainerResponse)
POST_CREATE_CONTAINER = _plain(nri.POST_CREATE_CONTAINER, nri.PostCreateContainerResponse)
START_CONTAINER = _plain(nri.START_CONTAINER, nri.StartContainerResponse)
POST_START_CONTAINER = _plain(nri.POST_START_CONTAINER, nri.PostStartContainerResponse)
UPDATE_CONTAINER = Event(nri.UPDATE_CONTAINER, "UpdateContainer", nri.UpdateContainerResponse)
POST_UPDATE_CONTAINER = _plain(nri.POST_UPDATE_CONTAINER, nri.PostUpdateContainerResponse)
STOP_CONTAINER = Event(nri.STOP_CONTAINER, "StopContainer", nri.StopContainerResponse)
REMOVE_CONTAINER = _plain(nri.REMOVE_CONTAINER, nri.RemoveContainerResponse)
VALIDATE = Event(
    nri.VALIDATE_CONTAINER_ADJUSTMENT, "ValidateContainerAdjustment", nri.ValidateContainerAdjustmentResponse
)


class Plugin:
    """A plugin that has registered and been configured."""

    def __init__(self, connection: Connection, who: Identity, *, events: int, pid: int) -> None:
        """`events` has the bits of the events that the plugin subscribes to."""
        self.connection = connection
        self.identity = who
        self.events = events
        self.pid = pid
        self._calls = 0
        self._seconds = self._slowest = 0.0

    def row(self) -> dict[str, object]:
        """Return the plugin's data for people; times are in milliseconds."""
        mean = self._seconds / self._calls if self._calls else 0.0
        return {
            "name": str(self),
            "pid": self.pid,
            "events": f"{self.events:#x}",
            "calls": self._calls,
            "meanMilliseconds": round(mean * 1000, 1),
            "slowestMilliseconds": round(self._slowest * 1000, 1),
        }

    def __str__(self) -> str:
        return str(self.identity)

    def wants(self, event: Event) -> bool:
        """Return whether the plugin subscribes to an event."""
        return bool(self.events & event.mask)

    def deliver(self, event: Event, request: Message, *, seconds: float) -> Message:
        """Deliver an event and return the answer. Raise as `Connection.call`. Only one call may run at a time."""
        began = time.monotonic()
        try:
            return self._deliver(event, request, seconds=seconds)
        finally:
            took = time.monotonic() - began
            self._calls += 1
            self._seconds += took
            self._slowest = max(self._slowest, took)

    def _deliver(self, event: Event, request: Message, *, seconds: float) -> Message:
        try:
            return self.connection.call(event.method, request, event.answer, seconds=seconds)
        except PluginFailed as error:
            if error.code != wire.UNIMPLEMENTED or event.to_state_change is None:
                raise
        self.connection.call("StateChange", event.to_state_change(request), nri.Empty, seconds=seconds)
        return event.answer()
