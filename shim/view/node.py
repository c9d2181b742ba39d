"""The node view: an index of this node's pods, containers and images, answered from memory.

`shim.view.watch` keeps it current; the RPCs that change something refresh what they changed before they return, so
that a client finds its own writes. Nothing here waits for Docker while it holds the lock.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import structlog

from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.domain.errors import Cancelled, InvalidArgument, NotFound, ShimError, Unavailable
from shim.domain.ids import SandboxId, only_id
from shim.engine.answers import ContainerInspect, ContainerSummary
from shim.engine.interface import Engine
from shim.logs.interface import Drains
from shim.view import changes, translate
from shim.view.availability import Availability
from shim.view.event_publisher import EventPublisher
from shim.view.image_view import ImageView
from shim.view.in_flight_reads import InFlightReads, Look, Moment, this_moment
from shim.view.lists import Lists, lists_from_records
from shim.view.pending_exits import Unlogged, as_shown, with_log_path
from shim.view.records import Change, ContainerRecord, Record, SandboxRecord

PATIENCE = 10.0
"""Seconds a question waits for a rebuild of the view that is under way."""
SUBSCRIBER_CAPACITY = 4096
"""Changes a subscriber may fall behind: several for each container of a full node."""
SUBSCRIBER_PATIENCE = 60.0
"""Seconds a subscriber waits for Docker. A kubelet that is refused subscribes again at once, and after five refusals
never again: a restart of Docker would cost it its events for good."""

log = structlog.get_logger(__name__)

R = TypeVar("R", SandboxRecord, ContainerRecord)

Fallback = Callable[[Record | None], Record | None]
"""What to take a container for that cannot be inspected, given its last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What the view holds and how it is fed, for people."""

    sandboxes: int
    containers: int
    images: int
    subscribers: int
    outage: str
    """Why no question is answered now; empty while they are."""
    images_outage: str
    """Why no question about images is answered, while those about containers are; empty while they are."""
    last_event_at: int
    """When the last event of the Engine came, ns since the epoch, 0 before the first."""
    reconnects: int
    """How many times Docker was lost and found again."""
    compared_seconds_ago: float | None
    """Age of the last full compare with what Docker lists; None before the first."""


class NodeView:
    """What is on this node now. Thread-safe.

    Every question raises Unavailable with the reason while Docker cannot be reached and until the first look at it
    is complete. That look is at containers; those about images may be refused for longer.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        logs: Drains | None = None,
        docker_root: Callable[[], str] | None = None,
        patience: float = PATIENCE,
        subscriber_capacity: int = SUBSCRIBER_CAPACITY,
        subscriber_patience: float = SUBSCRIBER_PATIENCE,
        clock: Callable[[], Moment] = this_moment,
    ) -> None:
        """`docker_root` gives Docker's own directory, asked of the Engine each time if it is None.

        `patience` is how many seconds a question waits for a rebuild that is under way, `subscriber_patience` how many
        a subscriber waits for Docker.
        """
        self._engine = engine
        self._logs = logs or Unlogged()
        self._docker_root = docker_root or (lambda: engine.info().docker_root_dir)
        self._changed = threading.Condition()
        self._availability = Availability(self._changed, patience=patience)
        self._clock = clock
        self._looks = InFlightReads(clock=clock)
        self._seen: dict[str, Moment] = {}
        self._records: dict[str, Record] = {}
        self._held_back: dict[str, Record] = {}
        self._lists: Lists | None = None
        self.images = ImageView(
            engine, changed=self._changed, availability=self._availability, looks=self._looks, patience=patience
        )
        """The images of the node."""
        self._announcer = EventPublisher(capacity=subscriber_capacity)
        self._subscriber_patience = subscriber_patience
        self._last_event_at = 0
        self._compared: float | None = None

    # Questions

    def sandboxes(self) -> tuple[SandboxRecord, ...]:
        """All pod sandboxes."""
        return self._sorted_out().sandboxes

    def containers(self) -> tuple[ContainerRecord, ...]:
        """All application containers."""
        return self._sorted_out().containers

    def containers_of(self, sandbox_id: SandboxId) -> tuple[ContainerRecord, ...]:
        """The containers of a sandbox; the id is a full one. Empty for a sandbox that is not known."""
        return self._sorted_out().by_sandbox.get(sandbox_id, ())

    def sandbox(self, id_or_prefix: str) -> SandboxRecord:
        """The sandbox whose id is this, or the only one whose id begins so.

        NotFound when there is none; InvalidArgument when there are several, and for an empty id.
        """
        return self._find(id_or_prefix, kind=SandboxRecord, of=lambda lists: lists.sandboxes, what="pod sandbox")

    def container(self, id_or_prefix: str) -> ContainerRecord:
        """The container whose id is this, or the only one whose id begins so; failures as for `sandbox`."""
        return self._find(id_or_prefix, kind=ContainerRecord, of=lambda lists: lists.containers, what="container")

    def subscribe(self) -> Subscription[Change]:
        """Every change from now on, as a context manager. It ends with Unavailable when Docker is lost.

        Who comes while Docker is out of reach waits for it, and is told all that has changed since it was lost.
        Unavailable when that takes too long.
        """
        with deadline.current().on_cancel(self._notify), self._changed, ExitStack() as held:
            made = held.enter_context(self._announcer.subscribe())
            self._wait_fed(made)
            held.pop_all()
            return made

    def wait_taken(self) -> None:
        """Wait until the clients of all subscribers have taken the changes so far; one that does not is dropped.

        The wait ends with the current scope.
        """
        dropped = self._announcer.wait_taken()
        if dropped:
            log.warning("dropped slow subscribers of events", subscribers=dropped)

    def stats(self) -> Stats:
        """What the view holds and how it is fed; also answered while Docker is out of reach."""
        with self._changed:
            lists = self._sorted_out_now()
            return Stats(
                sandboxes=len(lists.sandboxes),
                containers=len(lists.containers),
                images=self.images.count(),
                subscribers=self._announcer.subscribers(),
                outage=self._availability.outage or "",
                images_outage=self.images.outage(),
                last_event_at=self._last_event_at,
                reconnects=max(0, self._availability.completed - 1),
                compared_seconds_ago=None if self._compared is None else time.monotonic() - self._compared,
            )

    def long_outage(self, *, seconds: float) -> str:
        """Why no question has been answered for so many seconds; empty while they are, or if that began later."""
        with self._changed:
            return (self._availability.outage or "") if self._availability.outage_seconds >= seconds else ""

    # What RPCs and the watcher do after a change

    def refresh_container(self, container_id: str, *, fallback: Fallback | None = None) -> Record | None:
        """Inspect a container (by its full id) now, and publish what it is.

        None when it is gone, or does not belong to a pod. Raises what the inspect does otherwise. The record then
        stays as it was; or it becomes what `fallback` makes of it, if only this container cannot be inspected.
        """
        while True:
            with self._looks.looking(container_id, lock=self._changed) as look:
                try:
                    seen = self._inspected(container_id)
                except NotFound:
                    self.forget(container_id)
                    return None
                except ShimError as error:
                    if fallback is not None and not isinstance(error, (Unavailable, Cancelled)):
                        self._published(container_id, fallback(self._truth(container_id)), look=look)
                    raise
                record = translate.record_from_inspect(seen, previous=self._truth(container_id))
                if self._published(container_id, record, look=look, seen=look.began):
                    return record

    def refresh_ended(self, container_id: str) -> None:
        """Inspect a container that has just ended, and wait until its end may be shown."""
        self.refresh_container(container_id)
        scope = deadline.current()
        with scope.on_cancel(self._notify), self._changed:
            while container_id in self._held_back:
                scope.check(f"wait for the last output of container {container_id}")
                self._changed.wait(scope.remaining())

    def show_end(self, container_id: str) -> None:
        """Show the end of a container that was held back until its output was written."""
        with self._changed:
            ended = self._held_back.pop(container_id, None)
            if ended is not None:
                self._show(container_id, ended)
                self._changed.notify_all()

    def forget(self, container_id: str) -> None:
        """Say that a container is gone. Idempotent; Docker gives no id twice."""
        with self._changed:
            self._put(container_id, None)
        self._logs.forget(container_id)

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Defer the events of the sandbox of this name (`shim.domain.names.sandbox_name`) until the block is left.

        Its pause container runs before its network is there. Who was told then would see a started sandbox that is not
        ready, which to a kubelet is one that has died. Lists and statuses tell of it all along.
        """
        with self._changed:
            self._announcer.hold(name)
        try:
            yield
        finally:
            with self._changed:
                self._announcer.release(name)

    # What only the watcher does

    def begin_rebuild(self) -> int:
        """Say that Docker answers again; gives what `complete_rebuild` must present."""
        with self._changed:
            self.images.begin()
            return self._availability.begin_rebuild()

    def complete_rebuild(self, epoch: int, *, patience: float = 0.0) -> bool:
        """Let questions be answered, unless Docker was lost again since that rebuild began.

        The first one waits up to `patience` seconds for the output of containers that have ended, and then shows all
        their ends: clients may have seen them before this server was started.
        """
        with self._changed:
            if not self._availability.completed:
                self._changed.wait_for(lambda: not self._held_back or self._availability.stale(epoch), patience)
                for container_id in list(self._held_back):
                    self.show_end(container_id)
            if not self._availability.complete(epoch):
                return False
            self._announcer.found()
            return True

    def lose(self, reason: str) -> None:
        """Answer no question, and end every subscription, until the view has been rebuilt."""
        with self._changed:
            was_fed = self._availability.outage is None
            self._availability.lose(reason)
            self.images.lose(reason)
            if was_fed:  # those who came since then wait for what has changed
                self._announcer.lose(Unavailable(reason))

    def note_ended(self, record: Record) -> None:
        """Say that the process of this container is gone although Docker calls it running; a newer record stays."""
        with self._changed:
            if self._records.get(record.id) == record:
                self._put(record.id, changes.missed_exit(record, at=time.time_ns()))

    def seen_since(self, container_id: str, stamp: int) -> bool:
        """Whether a container is known from an inspect that began after what an event of Docker's, of that time, tells.

        Docker stamps an event when what it tells has happened (`timeNano`), so that inspect has shown it.
        """
        with self._changed:
            seen = self._seen.get(container_id)
        return seen is not None and seen.follows(stamp, now=self._clock())

    def knows(self, container_id: str) -> bool:
        """Whether there is a record of this container; also answered while Docker is out of reach."""
        return container_id in self._records

    def last_known(self, container_id: str) -> Record | None:
        """The last record of a container, by its full id; also given, without a wait, while Docker is out of reach."""
        return self._records.get(container_id)

    def records(self) -> dict[str, Record]:
        """All records by id; also given while Docker is out of reach."""
        with self._changed:
            return dict(self._records)

    def suspects(self, listed: Sequence[ContainerSummary]) -> set[str]:
        """The ids of containers of which Docker's list tells anything else than the view."""
        records = self.records()
        gone = records.keys() - {container.id for container in listed}
        return gone | {
            container.id for container in listed if not translate.agrees(container, records.get(container.id))
        }

    def note_event(self) -> None:
        """Say that an event of the Engine came just now."""
        self._last_event_at = time.time_ns()

    def note_compare(self) -> None:
        """Say that everything has been compared with what Docker lists just now."""
        self._compared = time.monotonic()

    # Inside

    def _inspected(self, container_id: str) -> ContainerInspect:
        return with_log_path(self._engine.inspect_container(container_id), root=self._docker_root)

    def _wait_fed(self, subscription: Subscription[Change]) -> None:
        """Wait until the view is fed, or the subscription has ended. The lock is held."""
        scope, end = deadline.current(), time.monotonic() + self._subscriber_patience
        while (outage := self._availability.outage) is not None and not subscription.has_ended:
            scope.check("wait for docker, to tell what changes")
            if time.monotonic() >= end:
                raise Unavailable(outage)
            self._changed.wait(scope.remaining(end - time.monotonic()))

    def _sorted_out(self) -> Lists:
        with self._changed:
            self._availability.wait_available()
            return self._sorted_out_now()

    def _sorted_out_now(self) -> Lists:
        if self._lists is None:
            self._lists = lists_from_records(self._records.values())
        return self._lists

    def _find(self, wanted: str, *, kind: type[R], of: Callable[[Lists], tuple[R, ...]], what: str) -> R:
        if not wanted:
            raise InvalidArgument(f"{what} id is empty")
        with self._changed:
            self._availability.wait_available()
            exact = self._records.get(wanted)
            if isinstance(exact, kind):
                return exact
            lists = self._sorted_out_now()
        known: dict[str, R] = {record.id: record for record in of(lists)}
        only = only_id(wanted, known, field=f"{what} id")
        if only is None:
            raise NotFound(f"no {what} has the id {wanted}")
        return known[only]

    def _published(self, container_id: str, record: Record | None, *, look: Look, seen: Moment | None = None) -> bool:
        with self._changed:
            # The same answer as the one that overtook it is as good: both are the truth of one moment.
            if look.overtaken and record != self._truth(container_id):
                return False
            self._put(container_id, record, seen=seen)
            return True

    def _truth(self, container_id: str) -> Record | None:
        return self._held_back.get(container_id, self._records.get(container_id))

    def _put(self, container_id: str, record: Record | None, *, seen: Moment | None = None) -> None:
        """Make `record` the truth, and as much of it public as may be shown. The lock is held.

        `seen` is when the inspect began that it comes from, None where it comes from anything else.
        """
        self._looks.overtake(container_id)
        if record is None or seen is None:
            self._seen.pop(container_id, None)
        else:
            self._seen[container_id] = seen
        shown = as_shown(record, self._logs, before=self._records.get(container_id))
        if record is None or shown is record:
            held_back = self._held_back.pop(container_id, None)
            if held_back is not None:
                if record is None:
                    self._show(container_id, held_back)  # how it ended is known, whoever removed it
                self._changed.notify_all()
        else:
            self._held_back[container_id] = record
        self._show(container_id, shown)

    def _show(self, container_id: str, record: Record | None) -> None:
        """Make `record` public, and tell subscribers. The lock is held, so that they hear it in order."""
        old = self._records.get(container_id)
        if record == old:
            return
        if record is None:
            del self._records[container_id]
        else:
            self._records[container_id] = record
        self._lists = None
        if self._availability.completed:  # what the first look finds has not changed
            self._announcer.tell(old, record)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
