"""The node view: an informer, as in client-go, of this node's pods, containers and images.

`shim.view.watch` syncs the view and keeps it current with Docker's events. Before an RPC returns, it refreshes the
objects it has changed, so that clients read their own writes. `Inspector` writes to the `RecordStore`, `Queries` reads
it. All share a lock, under which Docker is never called.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import structlog

from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.domain.errors import Unavailable
from shim.domain.ids import SandboxId
from shim.engine.interface import Engine
from shim.logs.interface import Drains
from shim.view import changes
from shim.view.availability import Availability
from shim.view.event_publisher import EventPublisher
from shim.view.image_view import ImageView
from shim.view.in_flight_reads import InFlightReads, Moment, this_moment
from shim.view.inspector import Fallback, Inspector
from shim.view.oom_kills import KernelKills, NoKills
from shim.view.pending_exits import NoLogs
from shim.view.queries import Queries
from shim.view.records import Change, ContainerRecord, Key, Record, SandboxRecord
from shim.view.store import RecordStore

SYNC_TIMEOUT = 10.0
"""Seconds a read waits for a sync in progress."""
SUBSCRIBER_CAPACITY = 4096
"""Changes a subscriber may fall behind: several for each container of a full node."""
SUBSCRIBER_TIMEOUT = 60.0
"""Seconds a subscriber waits for Docker. The kubelet retries a refused subscription at once, and gives up permanently
after five refusals. Without this wait, a restart of Docker would end its events."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The state of the view, for people."""

    sandboxes: int
    containers: int
    images: int
    subscribers: int
    outage: str
    """Why reads are refused; empty while synced."""
    images_outage: str
    """Why reads of images are refused; empty while images are known."""
    last_event_at: int
    """When the last event of the Engine arrived, ns since the epoch; 0 before the first."""
    reconnects: int
    """How often the connection to Docker was lost and the view synced again."""
    resync_seconds_ago: float | None
    """Seconds since all records were last compared with Docker's list; None before the first time."""


class NodeView:
    """The pods, containers and images of this node. Thread-safe.

    Reads raise Unavailable with the cause while Docker cannot be reached and until the first sync of containers is
    complete. Reads of images may be refused for longer.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        logs: Drains | None = None,
        kills: KernelKills | None = None,
        docker_root: Callable[[], str] | None = None,
        sync_timeout: float = SYNC_TIMEOUT,
        subscriber_capacity: int = SUBSCRIBER_CAPACITY,
        subscriber_timeout: float = SUBSCRIBER_TIMEOUT,
        clock: Callable[[], Moment] = this_moment,
    ) -> None:
        """`kills` are the OOM kills in the kernel's log; None if the log is not read.

        `docker_root` returns Docker's data root; None to get it from the Engine each time.

        A read waits up to `sync_timeout` seconds for a sync in progress. A subscriber waits up to `subscriber_timeout`
        seconds for Docker, and may fall `subscriber_capacity` changes behind.
        """
        logs = logs or NoLogs()
        self._changed = threading.Condition()
        self._availability = Availability(self._changed, timeout=sync_timeout)
        self._clock = clock
        reads = InFlightReads(clock=clock)
        self._store = RecordStore(changed=self._changed, reads=reads, logs=logs, on_change=self._publish_change_locked)
        self._inspector = Inspector(
            engine,
            self._store,
            lock=self._changed,
            reads=reads,
            logs=logs,
            kills=kills or NoKills(),
            docker_root=docker_root,
        )
        self._queries = Queries(self._store, availability=self._availability, lock=self._changed)
        self._publisher = EventPublisher(capacity=subscriber_capacity)
        self._subscriber_timeout = subscriber_timeout
        self._last_event_at = 0
        self._resynced: float | None = None
        self.images = ImageView(
            engine,
            changed=self._changed,
            availability=self._availability,
            reads=reads,
            timeout=sync_timeout,
            clock=clock,
        )
        """The images of the node."""

    # Reads

    def sandboxes(self) -> tuple[SandboxRecord, ...]:
        """Return all pod sandboxes."""
        return self._queries.lists().sandboxes

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return all application containers."""
        return self._queries.lists().containers

    def containers_of(self, sandbox_id: SandboxId) -> tuple[ContainerRecord, ...]:
        """Return the containers of a sandbox, by its full id; () if the sandbox is unknown."""
        return self._queries.lists().by_sandbox.get(sandbox_id, ())

    def sandbox(self, id_or_prefix: str) -> SandboxRecord:
        """Return a sandbox, as `Queries.sandbox` does."""
        return self._queries.sandbox(id_or_prefix)

    def container(self, id_or_prefix: str) -> ContainerRecord:
        """Return a container, as `Queries.container` does."""
        return self._queries.container(id_or_prefix)

    def last_known(self, container_id: str) -> Record | None:
        """Return the last known record of a container by its full id. Never wait."""
        with self._changed:
            return self._store.visible_locked(container_id)

    def names_of(self, container_id: str) -> dict[str, str]:
        """Return the names of a container or pod for log lines, as `RecordStore.names_locked` does. Never wait."""
        with self._changed:
            return self._store.names_locked(container_id)

    def last_known_containers_of(self, sandbox_id: SandboxId) -> tuple[ContainerRecord, ...]:
        """Return the last known containers of a sandbox, by its full id. Never wait."""
        with self._changed:
            return self._queries.lists_locked().by_sandbox.get(sandbox_id, ())

    def last_known_sandboxes_of(self, pod_uid: str) -> tuple[SandboxRecord, ...]:
        """Return the last known sandboxes of a pod, by its uid. Never wait."""
        with self._changed:
            return self._queries.lists_locked().by_pod_uid.get(pod_uid, ())

    def records(self) -> dict[str, Record]:
        """Return all last known records by id. Never wait."""
        with self._changed:
            return dict(self._store.records_locked())

    def inspected_after(self, container_id: str, stamp: int) -> bool:
        """Return whether the record of a container includes an event, because its inspect began later.

        `stamp` is the event's `timeNano`. Docker reads the clock after the change.
        """
        with self._changed:
            inspected = self._store.inspected_locked(container_id)
        return inspected is not None and inspected.follows(stamp, now=self._clock())

    def stats(self) -> Stats:
        """Return the state of the view, also while disconnected."""
        with self._changed:
            lists = self._queries.lists_locked()
            return Stats(
                sandboxes=len(lists.sandboxes),
                containers=len(lists.containers),
                images=self.images.count(),
                subscribers=self._publisher.subscribers(),
                outage=self._availability.outage or "",
                images_outage=self.images.outage(),
                last_event_at=self._last_event_at,
                reconnects=max(0, self._availability.syncs - 1),
                resync_seconds_ago=None if self._resynced is None else time.monotonic() - self._resynced,
            )

    def long_outage(self, *, seconds: float) -> str:
        """Return why reads have been refused for at least `seconds`; empty if they were answered since."""
        with self._changed:
            return (self._availability.outage or "") if self._availability.outage_seconds >= seconds else ""

    # Events

    def subscribe(self) -> Subscription[Change]:
        """Return a context manager with every change from now on. A disconnect ends it with Unavailable.

        While disconnected, wait for the next sync, and include the changes since the connection was lost. Raise
        Unavailable if the wait takes too long. A new subscriber also gets the changes that were missed since another
        subscription was ended or dropped a short time ago.
        """
        return self._subscribe(self._publisher.subscribe)

    def follow(self) -> Subscription[Change]:
        """Subscribe a part of the server, as `subscribe` does.

        No RPC waits until it has taken a change, and it does not use up the changes that a client missed.
        """
        return self._subscribe(self._publisher.follow)

    def wait_taken(self) -> None:
        """Wait until the clients of all subscribers have taken the changes so far, and drop slow subscribers.

        The wait ends with the current scope.
        """
        dropped = self._publisher.wait_taken(before_drop=self._note_dropped)
        if dropped:
            log.warning("dropped slow subscribers of events", subscribers=dropped)

    @contextmanager
    def defer_events(self, key: Key) -> Iterator[None]:
        """Defer the events of the sandbox or container with this key (`key_of`) until the block is left.

        A pause container runs before its network is set up. An event at that time would show a started sandbox that is
        not ready, which the kubelet would treat as dead. Lists and statuses include the sandbox from the beginning,
        unless NRI plugins must be notified first (`shim.view.unseen`).
        """
        with self._changed:
            self._publisher.defer(key)
        try:
            yield
        finally:
            with self._changed:
                self._publisher.flush(key)

    # Writes after a change

    def refresh_container(self, container_id: str, *, fallback: Fallback | None = None) -> Record | None:
        """Inspect a container and publish the result, as `Inspector.refresh` does."""
        return self._inspector.refresh(container_id, fallback=fallback)

    def forget(self, container_id: str) -> None:
        """Remove the record of a container that is gone. Idempotent; Docker never uses an id twice."""
        self._inspector.forget(container_id)

    def refresh_exited(self, container_id: str) -> None:
        """Inspect a container that has just exited, and wait until its exit is published."""
        self.refresh_container(container_id)
        what = f"wait for the last output of container {container_id}"
        deadline.wait_for(self._changed, lambda: not self._store.has_pending_exit_locked(container_id), what=what)

    def publish_exit(self, container_id: str) -> None:
        """Publish the pending exit of a container, if any, after its log was drained."""
        with self._changed:
            self._store.publish_exit_locked(container_id)

    def mark_missed_exit(self, record: Record) -> None:
        """Publish that a container has exited although Docker lists it as running, unless `record` is outdated."""
        with self._changed:
            if self._store.visible_locked(record.id) == record:
                self._store.put_locked(record.id, changes.missed_exit(record, at=time.time_ns()))

    # Sync

    def begin_sync(self) -> int:
        """Begin a sync; return its epoch for `complete_sync`."""
        with self._changed:
            self.images.begin_sync()
            return self._availability.begin_sync()

    def complete_sync(self, epoch: int, *, timeout: float = 0.0) -> bool:
        """Allow reads and return True; return False if the connection was lost after the sync began.

        The first sync waits up to `timeout` seconds for the logs of exited containers. It then publishes all exits,
        because clients may have seen them before the server restarted.
        """
        with self._changed:
            if not self._availability.syncs:
                self._changed.wait_for(lambda: self._exits_published_locked(epoch), timeout)
                if self._availability.is_stale(epoch):  # the next connection waits for the logs again
                    return False
                for container_id in self._store.pending_exits_locked():
                    self._store.publish_exit_locked(container_id)
            if not self._availability.complete_sync(epoch):
                return False
            self._publisher.reconnect()
            return True

    def disconnect(self, reason: str) -> None:
        """Refuse reads and end every subscription, until the next sync is complete."""
        with self._changed:
            was_synced = self._availability.outage is None
            self._availability.disconnect(reason)
            self.images.disconnect(reason)
            if was_synced:  # subscribers during the outage are not ended: they wait for the next sync
                self._publisher.disconnect(Unavailable(reason))

    def note_event(self) -> None:
        """Record the arrival of an event of the Engine."""
        self._last_event_at = time.time_ns()

    def note_resync(self) -> None:
        """Record that all records have just been compared with Docker's list."""
        self._resynced = time.monotonic()

    # Internals

    def _publish_change_locked(self, before: Record | None, after: Record | None) -> None:
        if self._availability.syncs:  # the records of the first sync are not changes
            self._publisher.publish(before, after)

    def _exits_published_locked(self, epoch: int) -> bool:
        return not self._store.pending_exits_locked() or self._availability.is_stale(epoch)

    def _note_dropped(self) -> None:
        with self._changed:
            self._publisher.note_dropped()

    def _subscribe(self, subscribe: Callable[[], Subscription[Change]]) -> Subscription[Change]:
        with self._changed, ExitStack() as stack:
            subscription = stack.enter_context(subscribe())
            self._wait_synced_locked(subscription)
            stack.pop_all()
            return subscription

    def _wait_synced_locked(self, subscription: Subscription[Change]) -> None:
        """Wait until the view is synced, or the subscription has ended."""
        deadline.wait_for(
            self._changed,
            lambda: self._availability.outage is None or subscription.has_ended,
            what="wait for Docker, to publish changes",
            limit=self._subscriber_timeout,
        )
        if self._availability.outage is not None and not subscription.has_ended:
            raise Unavailable(self._availability.outage)
