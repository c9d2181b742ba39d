"""All plugins: their registration and configuration, the order in which they are asked, and what ends them.

Events come one at a time, and each plugin is asked after the one before it has answered. A plugin that does not answer
in time, closes its connection or breaks the protocol is dropped, and the event goes on without it. A plugin that
answers with an error fails what the event is about.
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
from shim.nri.connection import Connection, Gone, NotServed, PluginFailed, Slow
from shim.nri.plugin import ALL_EVENTS, CREATE_CONTAINER, Identity, Occasion, Plugin, identity
from shim.nri.told import Told

MAX_PLUGINS = 64
"""Connections of plugins, registered or not."""
SYNC_BYTES = 3 << 20
"""Most bytes of pods and containers in one message of Synchronize; ttrpc takes 4 MiB."""

NRI_VERSION = "0.12.1"
"""The release of NRI that this server does as."""

_RETRY_SECONDS = 1.0
"""Between two tries to synchronize a plugin while Docker is unavailable."""
_SHUTDOWN_SECONDS = 0.5
"""For plugins to take leave."""

log = structlog.get_logger(__name__)


class Node(Protocol):
    """What plugins see and change."""

    def known(self, *, first: bool) -> tuple[Sequence[nri.PodSandbox], Sequence[nri.Container]]:
        """Return the pods and containers of which plugins have been told; `first` says that there was no plugin.

        Within `turn`. Raise Unavailable while Docker is.
        """

    def update(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Change limits of containers; return the updates that failed and may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds that plugins have."""

    registration: float
    """From the connection to the registration, and for the answer to what there is on the node."""
    request: float
    """For the answer to each call."""


@dataclass(slots=True)
class _Arrival:
    """A connection whose plugin is not among the others yet."""

    registered: bool = False
    identity: Identity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a plugin before it has said anything; of an installed one all."""

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
        """In the order in which they are asked."""
        self._connections: set[Connection] = set()
        self._joining: tuple[Plugin, ...] = ()
        """Those that are being synchronized: events wait for that, and then they are told of them."""
        self._expected = 0
        """Installed plugins that are yet to come."""
        self._node: Node | None = None
        self.problem = ""
        """Why no plugin can connect; empty if all is well."""
        self.told = Told()
        """What they have been told; used within `turn` alone."""

    # For the server

    def start(self, node: Node) -> None:
        """Let plugins see the node from now on."""
        self._node = node

    def stop(self) -> None:
        """Tell the plugins that the server ends, and close their connections."""
        gather([partial(self._take_leave, each) for each in self._plugins])
        with self._changed:
            connections = list(self._connections)
            self._plugins = ()
        for connection in connections:
            connection.close("the server ends")

    def expect(self) -> None:
        """Have events wait for one more installed plugin, until `expected` is called for it."""
        with self._changed:
            self._expected += 1

    def expected(self) -> None:
        """Have them wait no more: it has been taken in, or has failed."""
        with self._changed:
            self._expected -= 1
            self._changed.notify_all()

    def rows(self) -> list[dict[str, object]]:
        """Return the plugins, for people."""
        return [plugin.row() for plugin in self._plugins]

    def wait_for_plugins(self) -> None:
        """Wait until there is a plugin. Raise Cancelled, or what else ends the scope."""
        deadline.wait_for(self._changed, lambda: bool(self._plugins), what="wait for NRI plugins")

    # For those who have events

    @property
    def active(self) -> bool:
        """Whether there is any plugin, or one is expected."""
        return bool(self._plugins or self._joining) or self._expected > 0

    @property
    def may_change(self) -> bool:
        """Whether a plugin may change new containers, or one is expected."""
        return self._expected > 0 or self.wants(CREATE_CONTAINER)

    def wants(self, occasion: Occasion) -> bool:
        """Return whether a plugin wants to hear of an event."""
        return any(plugin.wants(occasion) for plugin in (*self._joining, *self._plugins))

    def wanting(self, occasion: Occasion) -> list[Plugin]:
        """Return the plugins that want to hear of an event."""
        return [plugin for plugin in self._plugins if plugin.wants(occasion)]

    @property
    def names(self) -> list[nri.PluginInstance]:
        """The plugins, as validators get them."""
        return [nri.PluginInstance(name=each.identity.name, index=each.identity.index) for each in self._plugins]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold off all other events, and the synchronization of new plugins, inside the block.

        Events wait for installed plugins that are being started, as long as those may take to register.
        """
        deadline.wait_for(
            self._changed,
            lambda: not self._expected,
            what="wait for the NRI plugins that are installed",
            limit=self._timeouts.registration,
        )
        with self._locks.hold("NRI event"):
            yield

    def tell(self, occasion: Occasion, request: Message) -> Iterator[tuple[Plugin, Message]]:
        """Tell each plugin of an event, and yield it with its answer before the next is told.

        Only within `turn`. Raise FailedPrecondition with the error that a plugin answers with.
        """
        for plugin in self._plugins:
            if plugin.wants(occasion):
                answer = self._ask(plugin, occasion, request)
                if answer is not None:
                    yield plugin, answer

    # For those who connect plugins

    def admit(self, opened: socket.socket, known: Known) -> None:
        """Take a plugin in by its connection, which this owns from now on. Return once it is one of all, or is not.

        Raise ShimError with the reason why it is not.
        """
        arrival = _Arrival(identity=known.identity)
        connection = Connection(
            opened,
            serve=lambda method, payload: self._serve(connection, arrival, known, method, payload),
            send_seconds=self._timeouts.request,
            on_end=self._forget,
        )
        connection.start()
        try:
            self._count_in(connection)
            self._introduce(connection, arrival, known)
        except BaseException as error:
            connection.close(str(error))
            raise

    def _count_in(self, connection: Connection) -> None:
        with self._changed:
            if len(self._connections) >= MAX_PLUGINS:
                raise ResourceExhausted(f"{MAX_PLUGINS} plugins are connected")
            if not connection.ended:
                self._connections.add(connection)

    def _introduce(self, connection: Connection, arrival: _Arrival, known: Known) -> None:
        if not connection.wait(lambda: arrival.registered, seconds=self._timeouts.registration):
            raise DeadlineExceeded(f"it has not registered within {self._timeouts.registration:g} s")
        who = arrival.identity
        if who is None:
            raise Gone(connection.ended or "it has not registered")
        with _naming(who):
            events = self._configure(connection, known.config)
            plugin = Plugin(connection, who, events=events, pid=known.pid)
            with self._joining_in(plugin):
                updates = self._synchronize(plugin)
        log.info("NRI plugin registered", plugin=str(who), pid=known.pid)
        if updates:
            self._update(updates)

    @contextmanager
    def _joining_in(self, plugin: Plugin) -> Iterator[None]:
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
            raise FailedPrecondition(f"it wants events that there are not: {answer.events & ~ALL_EVENTS:#x}")
        return answer.events or ALL_EVENTS

    def _synchronize(self, plugin: Plugin) -> Sequence[nri.ContainerUpdate]:
        """Tell a plugin what there is, and add it to the others, so that it misses nothing and gets nothing twice."""
        while True:
            try:
                with self._locks.hold("NRI event"):
                    updates = self._tell_all(plugin)
                    with self._changed:
                        if plugin.connection.ended:
                            raise Gone(plugin.connection.ended)
                        self._plugins = tuple(sorted((*self._plugins, plugin), key=lambda each: each.identity.index))
                        self._changed.notify_all()
                    return updates
            except Unavailable as error:
                log.debug("NRI plugin waits for docker", plugin=str(plugin), error=error)
                if plugin.connection.wait(lambda: False, seconds=_RETRY_SECONDS):
                    raise

    def _tell_all(self, plugin: Plugin) -> Sequence[nri.ContainerUpdate]:
        assert self._node is not None  # noqa: S101 - the server starts before it listens
        # As long as for its registration: it is told of the whole node at once.
        end = time.monotonic() + self._timeouts.registration
        requests = list(_parts(*self._node.known(first=not self._plugins)))
        for request in requests:
            answer = plugin.connection.call(
                "Synchronize", request, nri.SynchronizeResponse, seconds=max(0.0, end - time.monotonic())
            )
            if request.more and (answer.update or not answer.more):
                raise FailedPrecondition("it does not take pods and containers in several messages")
        return answer.update

    def _serve(self, connection: Connection, arrival: _Arrival, known: Known, method: str, payload: bytes) -> bytes:
        match method:
            case "RegisterPlugin":
                request = wire.decode(nri.RegisterPluginRequest, payload, what="registration")
                if arrival.registered:
                    raise FailedPrecondition("the plugin has registered before")
                if known.identity is None:
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
                raise NotServed

    def _update_unasked(self, request: nri.UpdateContainersRequest) -> nri.UpdateContainersResponse:
        if request.evict:
            log.warning("NRI plugin asks for evictions, which no runtime does", containers=len(request.evict))
        return nri.UpdateContainersResponse(failed=self._update(request.update))

    def _update(self, updates: Sequence[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        assert self._node is not None  # noqa: S101 - as above
        return self._node.update(updates)

    def _ask(self, plugin: Plugin, occasion: Occasion, request: Message) -> Message | None:
        """Return the answer of a plugin, None when it had to be dropped."""
        if plugin.connection.ended:
            return None
        try:
            with timed(Kind.NRI, str(plugin), occasion.method):
                return plugin.ask(occasion, request, seconds=self._timeouts.request)
        except PluginFailed as error:
            raise FailedPrecondition(f"NRI plugin {plugin}: {occasion.method}: {error}") from error
        except (Gone, Slow) as error:
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

    def _take_leave(self, plugin: Plugin) -> None:
        try:
            plugin.connection.call("Shutdown", nri.Empty(), nri.Empty, seconds=_SHUTDOWN_SECONDS)
        except ShimError as error:
            log.debug("NRI plugin took no leave", plugin=str(plugin), error=error)


@contextmanager
def _naming(who: Identity) -> Iterator[None]:
    """Have an error say of which plugin it is."""
    try:
        yield
    except ShimError as error:
        raise FailedPrecondition(f"NRI plugin {who}: {error}") from error


def _parts(pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]) -> Iterator[nri.SynchronizeRequest]:
    """Yield the messages in which a plugin is told of them: several if one would be too large."""
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
    """Return the process at the other end of a socket."""
    pid: int = struct.unpack("3i", opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def no_plugins() -> Plugins:
    """Return what there is where plugins are switched off."""
    return Plugins(Timeouts(registration=0.0, request=0.0))
