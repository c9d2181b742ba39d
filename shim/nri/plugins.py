"""All plugins: registration, configuration, delivery of events in order, and shutdown.

Events are delivered one at a time, to one plugin after the other. A plugin is dropped if it does not answer in time,
closes its connection or breaks the protocol; the event then goes to the next plugin. If a plugin answers with an error,
the operation behind the event fails.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
from google.protobuf.message import Message

import shim
from shim.api.nri import nri_pb2 as nri
from shim.base import deadline
from shim.base.gather import gather
from shim.base.locks import KeyedLocks
from shim.base.meter import Kind, timed
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, ShimError, Unavailable
from shim.nri import wire
from shim.nri.connection import Connection, Disconnected, NoAnswer, PluginFailed, UnknownMethod
from shim.nri.notified import Notified
from shim.nri.plugin import ALL_EVENTS, CREATE_CONTAINER, Event, Identity, Plugin, identity

MAX_PLUGINS = 64
"""Maximum connections of plugins, registered or not."""
SYNC_BYTES = 3 << 20
"""Maximum bytes of pods and containers in a message of Synchronize; ttrpc allows 4 MiB."""

NRI_VERSION = "0.12.1"
"""The release of NRI that this server implements."""

_RETRY_SECONDS = 1.0
"""Interval between attempts to synchronize a plugin while Docker is unavailable."""
_SHUTDOWN_SECONDS = 0.5
"""Limit for a plugin's answer to Shutdown."""

log = structlog.get_logger(__name__)


class Node(Protocol):
    """The node that plugins see and change."""

    def snapshot(self, *, first: bool) -> tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]]:
        """Return the pods and containers that plugins know of. `first`: no plugin is registered yet.

        Called within `turn`. Raise Unavailable while Docker is unavailable.
        """

    def update(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Change limits of containers; return the failed updates, except those whose failure is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time limits of plugins, in seconds."""

    registration: float
    """From connection to registration, and again for the answer to Synchronize."""
    request: float
    """For the answer to any other call."""


@dataclass(slots=True)
class _Arrival:
    """The registration of a connection in progress."""

    registered: bool = False
    identity: Identity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Facts about a plugin before it registers. For an installed plugin all fields are set."""

    identity: Identity | None = None
    config: str = ""
    pid: int = 0


class Plugins:
    """The plugins of this node. Thread-safe."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._locks = KeyedLocks()
        self._changed = threading.Condition()
        self._plugins: tuple[Plugin, ...] = ()
        """Sorted by index, the order of delivery."""
        self._connections: set[Connection] = set()
        self._joining: tuple[Plugin, ...] = ()
        """Plugins being synchronized. Events wait for them, and are then delivered to them too."""
        self._arriving = 0
        """Installed plugins that have been started and have neither registered nor failed."""
        self._node: Node | None = None
        self.problem = ""
        """Why no plugin can connect; empty if plugins can."""
        self.notified = Notified()
        """The events that plugins have received; for use within `turn` only."""

    # For the server

    def start(self, node: Node) -> None:
        """Let plugins see the node from now on."""
        self._node = node

    def stop(self) -> None:
        """Send Shutdown to the plugins and close their connections."""
        gather([partial(self._shut_down, each) for each in self._plugins])
        with self._changed:
            connections = list(self._connections)
            self._plugins = ()
        for connection in connections:
            connection.close("the server ends")

    def begin_arrival(self) -> None:
        """Make events wait for another installed plugin, until `end_arrival` is called for it."""
        with self._changed:
            self._arriving += 1

    def end_arrival(self) -> None:
        """Stop waiting for an installed plugin, because it has registered or failed."""
        with self._changed:
            self._arriving -= 1
            self._changed.notify_all()

    def rows(self) -> list[dict[str, object]]:
        """Return the plugins' data for people."""
        return [plugin.row() for plugin in self._plugins]

    def wait_for_plugins(self) -> None:
        """Wait until a plugin is registered. Raise Cancelled or DeadlineExceeded."""
        deadline.wait_for(self._changed, lambda: bool(self._plugins), what="wait for NRI plugins")

    # For senders of events

    @property
    def active(self) -> bool:
        """Whether a plugin is registered or expected to register."""
        return bool(self._plugins or self._joining) or self._arriving > 0

    @property
    def may_change(self) -> bool:
        """Whether a plugin that may change new containers is registered or expected to register."""
        return self._arriving > 0 or self.wants(CREATE_CONTAINER)

    def wants(self, event: Event) -> bool:
        """Return whether any plugin subscribes to an event."""
        return any(plugin.wants(event) for plugin in (*self._joining, *self._plugins))

    def subscribers(self, event: Event) -> list[Plugin]:
        """Return the plugins that subscribe to an event."""
        return [plugin for plugin in self._plugins if plugin.wants(event)]

    @property
    def names(self) -> list[nri.PluginInstance]:
        """The plugins as messages for validators."""
        return [nri.PluginInstance(name=each.identity.name, index=each.identity.index) for each in self._plugins]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside the block, hold back all other events and the synchronization of new plugins.

        First wait for installed plugins that are starting, for at most the registration timeout.
        """
        deadline.wait_for(
            self._changed,
            lambda: not self._arriving,
            what="wait for installed NRI plugins",
            limit=self._timeouts.registration,
        )
        with self._locks.hold("NRI event"):
            yield

    def call(self, event: Event, request: Message) -> Iterator[tuple[Plugin, Message]]:
        """Deliver an event to each subscriber; yield the plugin and its answer before the next delivery.

        For use within `turn` only. Raise FailedPrecondition with the error that a plugin answers.
        """
        for plugin in self._plugins:
            if plugin.wants(event):
                answer = self._deliver(plugin, event, request)
                if answer is not None:
                    yield plugin, answer

    # For the listener and installed plugins

    def admit(self, opened: socket.socket, peer: Peer) -> None:
        """Take over a connection and wait until its plugin is registered and synchronized.

        If the plugin is refused, close the connection and raise ShimError with the reason.
        """
        arrival = _Arrival(identity=peer.identity)
        connection = Connection(
            opened,
            serve=lambda method, payload: self._serve(connection, arrival, peer, method, payload),
            send_seconds=self._timeouts.request,
            on_end=self._forget,
        )
        connection.start()
        try:
            self._add_connection(connection)
            self._register(connection, arrival, peer)
        except BaseException as error:
            connection.close(str(error))
            raise

    def _add_connection(self, connection: Connection) -> None:
        with self._changed:
            if len(self._connections) >= MAX_PLUGINS:
                raise ResourceExhausted(f"{MAX_PLUGINS} plugins are connected")
            if not connection.ended:
                self._connections.add(connection)

    def _register(self, connection: Connection, arrival: _Arrival, peer: Peer) -> None:
        if not connection.wait(lambda: arrival.registered, seconds=self._timeouts.registration):
            raise DeadlineExceeded(f"the plugin has not registered within {self._timeouts.registration:g} s")
        who = arrival.identity
        if who is None:
            raise Disconnected(connection.ended or "the plugin has not registered")
        with _naming(who):
            events = self._configure(connection, peer.config)
            plugin = Plugin(connection, who, events=events, pid=peer.pid)
            with self._announced(plugin):
                updates = self._synchronize(plugin)
        log.info("NRI plugin registered", plugin=str(who), pid=peer.pid)
        if updates:
            self._update(updates)

    @contextmanager
    def _announced(self, plugin: Plugin) -> Iterator[None]:
        with self._changed:
            self._joining = (*self._joining, plugin)
        try:
            yield
        finally:
            with self._changed:
                self._joining = tuple(each for each in self._joining if each is not plugin)

    def _configure(self, connection: Connection, config: str) -> int:
        request = nri.ConfigureRequest(
            config=config,
            runtime_name="pydockershim",
            runtime_version=shim.__version__,
            registration_timeout=round(self._timeouts.registration * 1000),
            request_timeout=round(self._timeouts.request * 1000),
            NRI_version=NRI_VERSION,
        )
        answer = connection.call("Configure", request, nri.ConfigureResponse, seconds=self._timeouts.request)
        if answer.events & ~ALL_EVENTS:
            raise FailedPrecondition(f"the plugin subscribes to unknown events: {answer.events & ~ALL_EVENTS:#x}")
        return answer.events or ALL_EVENTS

    def _synchronize(self, plugin: Plugin) -> Sequence[nri.ContainerUpdate]:
        """Send Synchronize and add the plugin, with no event in between, so that it misses none and gets none twice."""
        while True:
            try:
                with self._locks.hold("NRI event"):
                    updates = self._send_all(plugin)
                    with self._changed:
                        if plugin.connection.ended:
                            raise Disconnected(plugin.connection.ended)
                        self._plugins = tuple(sorted((*self._plugins, plugin), key=lambda each: each.identity.index))
                        self._changed.notify_all()
                    return updates
            except Unavailable as error:
                log.debug("NRI plugin waits for Docker", plugin=str(plugin), error=error)
                if plugin.connection.wait(lambda: False, seconds=_RETRY_SECONDS):
                    raise

    def _send_all(self, plugin: Plugin) -> Sequence[nri.ContainerUpdate]:
        assert self._node is not None  # noqa: S101 - the server starts before it listens
        # The registration timeout applies to all messages together, which describe the whole node.
        end = time.monotonic() + self._timeouts.registration
        requests = list(_parts(*self._node.snapshot(first=not self._plugins)))
        for request in requests:
            answer = plugin.connection.call(
                "Synchronize", request, nri.SynchronizeResponse, seconds=max(0.0, end - time.monotonic())
            )
            if request.more and (answer.update or not answer.more):
                raise FailedPrecondition("the plugin does not support Synchronize in several messages")
        return answer.update

    def _serve(self, connection: Connection, arrival: _Arrival, peer: Peer, method: str, payload: bytes) -> bytes:
        match method:
            case "RegisterPlugin":
                request = wire.decode(nri.RegisterPluginRequest, payload, what="registration")
                if arrival.registered:
                    raise FailedPrecondition("the plugin has registered already")
                if peer.identity is None:
                    arrival.identity = identity(request.plugin_idx, request.plugin_name)
                arrival.registered = True
                connection.wake()
                return b""
            case "UpdateContainers":
                if not any(plugin.identity == arrival.identity for plugin in self._plugins):
                    raise FailedPrecondition("the plugin has not been synchronized yet")
                updates = wire.decode(nri.UpdateContainersRequest, payload, what="updates")
                return self._update_unasked(updates).SerializeToString()
            case _:
                raise UnknownMethod

    def _update_unasked(self, request: nri.UpdateContainersRequest) -> nri.UpdateContainersResponse:
        if request.evict:
            log.warning("NRI plugin asks for evictions, which no runtime does", containers=len(request.evict))
        return nri.UpdateContainersResponse(failed=self._update(request.update))

    def _update(self, updates: Sequence[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        assert self._node is not None  # noqa: S101 - the server starts before it listens
        return self._node.update(updates)

    def _deliver(self, plugin: Plugin, event: Event, request: Message) -> Message | None:
        """Return the answer of a plugin, or None if the plugin was dropped."""
        if plugin.connection.ended:
            return None
        try:
            with timed(Kind.NRI, str(plugin), event.method):
                return plugin.deliver(event, request, seconds=self._timeouts.request)
        except PluginFailed as error:
            raise FailedPrecondition(f"NRI plugin {plugin}: {event.method}: {error}") from error
        except (Disconnected, NoAnswer) as error:
            plugin.connection.close(str(error))
            return None

    def _forget(self, connection: Connection, why: str) -> None:
        with self._changed:
            self._connections.discard(connection)
            gone = [plugin for plugin in self._plugins if plugin.connection is connection]
            self._plugins = tuple(plugin for plugin in self._plugins if plugin.connection is not connection)
            self._changed.notify_all()
        for plugin in gone:
            log.warning("NRI plugin is gone", plugin=str(plugin), reason=why)

    def _shut_down(self, plugin: Plugin) -> None:
        try:
            plugin.connection.call("Shutdown", nri.Empty(), nri.Empty, seconds=_SHUTDOWN_SECONDS)
        except ShimError as error:
            log.debug("NRI plugin did not answer Shutdown", plugin=str(plugin), error=error)


@contextmanager
def _naming(who: Identity) -> Iterator[None]:
    """Name the plugin in errors."""
    try:
        yield
    except ShimError as error:
        raise FailedPrecondition(f"NRI plugin {who}: {error}") from error


def _parts(pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]) -> Iterator[nri.SynchronizeRequest]:
    """Yield the requests of Synchronize: several if a single message would be too large."""
    part, size = nri.SynchronizeRequest(), 0
    for each in (*pods, *containers):
        added = each.ByteSize() + 8
        if size and size + added > SYNC_BYTES:
            part.more = True
            yield part
            part, size = nri.SynchronizeRequest(), 0
        (part.pods if isinstance(each, nri.PodSandbox) else part.containers).append(each)  # type: ignore[arg-type]
        size += added
    yield part


def peer_pid(opened: socket.socket) -> int:
    """Return the pid of the process at the other end of a socket."""
    pid: int = struct.unpack("3i", opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def no_plugins() -> Plugins:
    """Return the plugins of a server with NRI disabled: none."""
    return Plugins(Timeouts(registration=0.0, request=0.0))
