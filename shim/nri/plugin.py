"""One plugin: its name, what it wants to hear of, and how it is asked."""

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
"""Characters of a plugin's name."""

ALL_EVENTS = (1 << nri.LAST - 1) - 1
"""The bits of all events; bit n-1 stands for the event n."""

_NAME = re.compile(r"[a-zA-Z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")

A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Identity:
    """A name, and the index by which plugins come one after the other."""

    index: str
    name: str

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"


def identity(index: str, name: str) -> Identity:
    """Return the identity of a plugin. Raise FailedPrecondition for what is none."""
    if not _INDEX.fullmatch(index):
        raise FailedPrecondition(f"the index of a plugin has two digits, and not {index[:MAX_NAME]!r}")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise FailedPrecondition(f"{name[:MAX_NAME]!r} is no name of a plugin")
    return Identity(index, name)


def identity_of_file(name: str) -> Identity:
    """Return the identity of a plugin that is installed under this name, such as `10-logger`."""
    index, _, rest = name.partition("-")
    return identity(index, rest)


@dataclass(frozen=True, slots=True)
class Occasion:
    """An event with its call: what is sent, and what comes back."""

    event: int
    """Number of the event."""
    method: str
    answer: type[Message]
    before: Callable[[Message], nri.StateChangeEvent] | None = None
    """The same in the way of older plugins, which have no call for it; None where there is none."""

    @property
    def mask(self) -> int:
        """Return its bit."""
        return 1 << self.event - 1


Request: TypeAlias = Message


def _state_change(event: "nri.Event") -> Callable[[Message], nri.StateChangeEvent]:
    def convert(request: Message) -> nri.StateChangeEvent:
        container = getattr(request, "container", None)
        pod: nri.PodSandbox = getattr(request, "pod")  # noqa: B009 - every request of an event has it
        return nri.StateChangeEvent(event=event, pod=pod, container=container)

    return convert


def _plain(event: "nri.Event", answer: type[Message]) -> Occasion:
    """Return an event whose answer says nothing."""
    method = answer.DESCRIPTOR.name.removesuffix("Response")
    return Occasion(event, method, answer, before=_state_change(event))


RUN_POD_SANDBOX = _plain(nri.RUN_POD_SANDBOX, nri.RunPodSandboxResponse)
STOP_POD_SANDBOX = _plain(nri.STOP_POD_SANDBOX, nri.StopPodSandboxResponse)
REMOVE_POD_SANDBOX = _plain(nri.REMOVE_POD_SANDBOX, nri.RemovePodSandboxResponse)
UPDATE_POD_SANDBOX = Occasion(nri.UPDATE_POD_SANDBOX, "UpdatePodSandbox", nri.UpdatePodSandboxResponse)
POST_UPDATE_POD_SANDBOX = _plain(nri.POST_UPDATE_POD_SANDBOX, nri.PostUpdatePodSandboxResponse)
CREATE_CONTAINER = Occasion(nri.CREATE_CONTAINER, "CreateContainer", nri.CreateContainerResponse)
POST_CREATE_CONTAINER = _plain(nri.POST_CREATE_CONTAINER, nri.PostCreateContainerResponse)
START_CONTAINER = _plain(nri.START_CONTAINER, nri.StartContainerResponse)
POST_START_CONTAINER = _plain(nri.POST_START_CONTAINER, nri.PostStartContainerResponse)
UPDATE_CONTAINER = Occasion(nri.UPDATE_CONTAINER, "UpdateContainer", nri.UpdateContainerResponse)
POST_UPDATE_CONTAINER = _plain(nri.POST_UPDATE_CONTAINER, nri.PostUpdateContainerResponse)
STOP_CONTAINER = Occasion(nri.STOP_CONTAINER, "StopContainer", nri.StopContainerResponse)
REMOVE_CONTAINER = _plain(nri.REMOVE_CONTAINER, nri.RemoveContainerResponse)
VALIDATE = Occasion(
    nri.VALIDATE_CONTAINER_ADJUSTMENT, "ValidateContainerAdjustment", nri.ValidateContainerAdjustmentResponse
)


class Plugin:
    """A plugin that has registered and been configured."""

    def __init__(self, connection: Connection, who: Identity, *, events: int, pid: int) -> None:
        """`events` are the bits of what it wants to hear of."""
        self.connection = connection
        self.identity = who
        self.events = events
        self.pid = pid
        self._calls = 0
        self._seconds = self._slowest = 0.0

    def row(self) -> dict[str, object]:
        """Return what is known of it, for people; times in milliseconds."""
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

    def wants(self, occasion: Occasion) -> bool:
        """Return whether it wants to hear of an event."""
        return bool(self.events & occasion.mask)

    def ask(self, occasion: Occasion, request: Message, *, seconds: float) -> Message:
        """Tell the plugin of an event, and return its answer. Raise as `Connection.call` does. One event at a time."""
        began = time.monotonic()
        try:
            return self._ask(occasion, request, seconds=seconds)
        finally:
            took = time.monotonic() - began
            self._calls += 1
            self._seconds += took
            self._slowest = max(self._slowest, took)

    def _ask(self, occasion: Occasion, request: Message, *, seconds: float) -> Message:
        try:
            return self.connection.call(occasion.method, request, occasion.answer, seconds=seconds)
        except PluginFailed as error:
            if error.code != wire.UNIMPLEMENTED or occasion.before is None:
                raise
        self.connection.call("StateChange", occasion.before(request), nri.Empty, seconds=seconds)
        return occasion.answer()
