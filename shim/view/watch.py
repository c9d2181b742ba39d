"""The informer's reflector: lists all containers, then watches Docker's events, and repeats both after a disconnect.

Images are listed separately, at each connection and rarely later. The view of containers does not wait for them.

An event only names an object that may have changed. The published record comes from an inspect that began after the
event, so events may come twice or out of order. The resync each minute detects changes whose event was lost, and exits
that Docker has missed.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog

from shim.base import deadline
from shim.base.backoff import backoff
from shim.base.gather import gather
from shim.domain.errors import DeadlineExceeded, ShimError
from shim.domain.labels import TYPE
from shim.engine.answers import ContainerSummary, Event
from shim.engine.failures import answered_within
from shim.engine.interface import CONTAINER_ACTIONS, IMAGE_ACTIONS, Engine
from shim.view.node_view import NodeView
from shim.view.processes import process_ended
from shim.view.records import Record
from shim.view.refresh import Refresher
from shim.view.translate import drifted_ids, from_list_only, may_be_of_a_pod

CHANGING = CONTAINER_ACTIONS - {"destroy"}
"""Container events that may change a record."""
DELAYED = CHANGING - {"die", "oom"}
"""Events with a delayed inspect, because mostly an RPC has caused them and refreshes the container itself. Exits are
published without delay."""

LIST_TIMEOUT = 30.0
"""Timeout of listing all containers, in seconds, after which the view refuses reads.

Docker lists from memory, within milliseconds, or a second with a thousand containers on an overloaded machine. If
events arrive during the list, Docker is working, so the list is repeated once with the same timeout. The view lists
every `Timings.resync` seconds. So it refuses reads within 90 s of Docker's last answer, or within 120 s if events
arrive. The kubelet marks a node as not ready if it cannot list pods for three minutes. Until then the last known state
is more useful than an error, and Status reports a hung Docker within seconds.
"""

Ended = Callable[[Record], bool]
"""Returns whether the process of a container that Docker lists as running is gone."""

_REMEMBERED_REASONS = 32
"""Maximum different reasons of an outage that are logged only once each."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The watcher's intervals and timeouts, in seconds."""

    resync: float = 60.0
    """Interval of comparing the view with Docker's list."""
    missed_exit: float = 3.0
    """Delay from detecting that a running container's process is gone to publishing its exit. Meanwhile Docker may
    report the exit, with the exit code."""

    inspect_timeout: float = 10.0
    """Timeout of an inspect."""
    event_delay: float = 0.5
    """Delay from an event of DELAYED to its inspect, which the RPC mostly makes unnecessary. On a busy node Docker
    takes this long from the create of a pause container to the end of its start, and from the event of a start to its
    answer. During a start Docker does not answer an inspect."""
    sync_inspect_timeout: float = 3.0
    """Timeout of an inspect during a sync, for which all reads wait."""
    list_timeout: float = LIST_TIMEOUT
    """Timeout of listing all containers; see LIST_TIMEOUT."""
    images_wait: float = 1.0
    """How long a sync waits for the list of images, once all containers are known. Statuses show image names."""
    retry_delay: float = 1.0
    """Delay from a failed inspect to its first retry; doubled each time."""
    min_reconnect_delay: float = 0.1
    """Delay from a disconnect to the first attempt to reconnect; doubled each time."""
    max_reconnect_delay: float = 5.0
    """Maximum delay between two attempts to reconnect."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection to the event stream."""

    scope: deadline.Scope = field(default_factory=deadline.Scope)
    """The scope of all calls to Docker during this connection; cancelled when the connection is lost."""
    ended: threading.Event = field(default_factory=threading.Event)
    reason: str = ""
    synced: bool = False

    def end(self, reason: str) -> None:
        """Cancel all calls of this connection. The first reason counts."""
        self.reason = self.reason or reason
        self.ended.set()
        self.scope.cancel()


class Watcher:
    """Keeps a NodeView current, in threads."""

    def __init__(
        self,
        engine: Engine,
        view: NodeView,
        *,
        timings: Timings | None = None,
        ended: Ended = process_ended,
        on_connect: Callable[[], None] = lambda: None,
        before_first_sync: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a stopped watcher; `ended` returns whether the process of a running container is gone.

        `on_connect` is called after each new connection to Docker, which may be another daemon; it must not block.
        `before_first_sync` is called once the view has all records for the first time, while reads are still refused.
        It is called again if the connection is lost before it returns. It may use `NodeView.records`.
        """
        self._on_connect = on_connect
        self._before_first_sync = before_first_sync
        self._engine = engine
        self._view = view
        self._timings = timings or Timings()
        self._ended = ended
        self._refresher = Refresher(
            view, inspect_seconds=self._timings.inspect_timeout, retry_seconds=self._timings.retry_delay
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._connection = _Connection()
        self._logged_reasons: set[str] = set()
        """The reasons logged since the last sync."""
        self._events = 0
        """The number of events that have arrived."""
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def start(self) -> None:
        """Start the threads. Docker need not answer yet."""
        self._refresher.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads and their calls to Docker. The view refuses reads from then on."""
        with self._lock:
            self._stopping.set()
            connection = self._connection
        connection.end("the server is stopping")
        self._thread.join()
        self._refresher.stop()

    def row(self) -> dict[str, object]:
        """Return the state of the queue of inspects, for people."""
        return self._refresher.row()

    # Connection

    def _run(self) -> None:
        failures = 0
        while (connection := self._new_connection()) is not None:
            try:
                self._watch(connection)
            except ShimError as error:
                connection.end(str(error))
            except Exception as error:  # an outdated view must refuse reads and sync again
                log.exception("node view failed")
                connection.end(f"the view of Docker failed: {error}")
            self._disconnect(connection)
            failures = 0 if connection.synced else failures + 1
            self._stopping.wait(self._reconnect_delay(failures))

    def _new_connection(self) -> _Connection | None:
        with self._lock:
            self._connection = _Connection()
            return None if self._stopping.is_set() else self._connection

    def _reconnect_delay(self, failures: int) -> float:
        """Return the back-off in seconds after `failures` in a row, with jitter: many nodes may share the cause."""
        first, longest = self._timings.min_reconnect_delay, self._timings.max_reconnect_delay
        return backoff(failures + 1, first=first, longest=longest) * random.SystemRandom().uniform(0.5, 1.0)

    def _watch(self, connection: _Connection) -> None:
        """Keep the view current until the connection is lost.

        The event stream starts before the list, from Docker's backlog, so that no event is lost in between. A second
        thread reads it, also during the sync, because Docker drops events for slow readers. After the sync this thread
        resyncs each minute, and sooner while the process of a running container is missing.
        """
        reader = None
        try:
            with deadline.entered(connection.scope), self._engine.events(since=time.time_ns()) as events:
                self._on_connect()
                epoch = self._view.begin_sync()
                thread = threading.Thread(target=self._read, args=(connection, events), name="view-events", daemon=True)
                thread.start()
                reader = thread
                with _end_on_error(connection):
                    connection.synced = self._sync(epoch)
                    missing = self._missing_processes()
                    while not connection.ended.wait(self._timings.missed_exit if missing else self._timings.resync):
                        missing = self._resync(missing)
        finally:
            if reader is not None:
                reader.join()

    def _disconnect(self, connection: _Connection) -> None:
        self._view.disconnect(connection.reason)
        if self._stopping.is_set() or connection.reason in self._logged_reasons:
            return
        log.warning("lost connection to Docker", reason=connection.reason)
        if len(self._logged_reasons) < _REMEMBERED_REASONS:
            self._logged_reasons.add(connection.reason)

    # Sync and resync

    def _sync(self, epoch: int) -> bool:
        """Inspect all containers of Docker's list and of the view, and allow reads; return whether reads are allowed.

        Each inspect has a short timeout, so that a stuck container does not delay the sync. If an inspect fails, the
        view uses the state from the list, and the workers retry the inspect. Raise Unavailable if Docker is gone.
        """
        self._refresher.enqueue_images_now()
        listed = {container.id: container for container in self._list() if may_be_of_a_pod(container)}
        inspects: list[Callable[[], None]] = [
            partial(self._inspect_first, container_id, listed.get(container_id))
            for container_id in listed.keys() | self._view.records().keys()
        ]
        gather(inspects)
        self._view.note_resync()
        self._before_first_sync()
        # If the connection was lost meanwhile, the callback was cut short. Then this raises, and the next connection
        # calls the callback again.
        deadline.current().check("prepare the first answer")
        self._before_first_sync = lambda: None
        self._view.images.wait_listed(self._timings.images_wait)
        if not self._view.complete_sync(epoch, timeout=self._timings.sync_inspect_timeout):
            return False
        self._logged_reasons.clear()
        log.info("node view synced", containers=len(listed))
        return True

    def _inspect_first(self, container_id: str, listed: ContainerSummary | None) -> None:
        fallback = None if listed is None else partial(from_list_only, listed=listed)
        self._refresher.refresh_first(container_id, seconds=self._timings.sync_inspect_timeout, fallback=fallback)

    def _resync(self, missing_before: dict[str, Record]) -> dict[str, Record]:
        """Queue all containers whose record disagrees with Docker's list or with the processes of this node.

        If the process of a container in `missing_before` is still missing, publish its exit. Return the other
        containers whose process is missing.
        """
        missing = self._missing_processes()
        for container_id in drifted_ids(self._list(), self._view.records()) | missing.keys():
            self._refresher.enqueue(container_id)
        self._refresher.enqueue_images()
        self._view.note_resync()
        for container_id in [known for known, record in missing.items() if missing_before.get(known) == record]:
            log.warning("Docker missed the exit of a container", container=container_id)
            self._view.mark_missed_exit(missing.pop(container_id))
        return missing

    def _missing_processes(self) -> dict[str, Record]:
        return {container_id: record for container_id, record in self._view.records().items() if self._ended(record)}

    def _list(self) -> list[ContainerSummary]:
        """List all containers. Raise DeadlineExceeded if Docker hangs; see LIST_TIMEOUT."""
        before = self._events
        try:
            return self._list_once()
        except DeadlineExceeded:
            if self._events == before:
                raise
        return self._list_once()

    def _list_once(self) -> list[ContainerSummary]:
        with answered_within(self._timings.list_timeout, what="list containers"):
            return self._engine.list_containers()

    # Events

    def _read(self, connection: _Connection, events: Iterable[Event]) -> None:
        reason = "the reader of Docker's events failed"
        try:
            for event in events:
                self._events += 1
                self._view.note_event()
                self._handle(event)
            reason = "Docker ended its event stream"
        except ShimError as error:
            reason = str(error)
        finally:
            # Refuse reads here, at once, because records may be outdated now and the other thread may wait for Docker.
            connection.end(reason)
            self._view.disconnect(connection.reason)

    def _handle(self, event: Event) -> None:
        if event.type == "container":
            self._handle_container_event(event)
        elif event.type == "image" and event.action in IMAGE_ACTIONS:
            self._refresher.enqueue_image(event.actor.id, stamp=event.time_nano)

    def _handle_container_event(self, event: Event) -> None:
        container_id = event.actor.id
        if event.action == "destroy":
            self._view.forget(container_id)
        elif event.action in CHANGING and self._may_be_of_a_pod(event):
            after = self._timings.event_delay if event.action in DELAYED else 0.0
            self._refresher.enqueue_changed(container_id, stamp=event.time_nano, after=after)

    def _may_be_of_a_pod(self, event: Event) -> bool:
        # The attributes include the labels of the container.
        attributes = event.actor.attributes or {}
        return not attributes or TYPE in attributes or self._view.last_known(event.actor.id) is not None


@contextmanager
def _end_on_error(connection: _Connection) -> Iterator[None]:
    """End the connection with the error of the block.

    This must happen before the event stream is closed. Otherwise the reader would report the end of the stream, a mere
    consequence, as the reason.
    """
    try:
        yield
    except ShimError as error:
        connection.end(str(error))
        raise
    except Exception as error:
        connection.end(f"the view of Docker failed: {error}")
        raise
