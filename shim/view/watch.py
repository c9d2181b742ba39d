"""Keeping the node view current: one look at all containers, then Docker's events, and again after every interruption.

Images are listed beside that and completed by themselves: the view of containers does not wait for them.

An event only says where to look: what is published comes from an inspect that began after it. So events may come twice
or out of order, and what one that was lost would have told is found by the compare every minute; it also finds exits
that Docker itself has missed.
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
from shim.base.gather import gather
from shim.domain import names
from shim.domain.errors import DeadlineExceeded, ShimError
from shim.engine.answers import ContainerSummary, Event
from shim.engine.hanging import answered_within
from shim.engine.interface import Engine
from shim.view.node import NodeView
from shim.view.processes import process_ended
from shim.view.records import Record
from shim.view.refresh import Refresher
from shim.view.translate import from_list_only, may_be_of_a_pod

CHANGING = frozenset({"create", "start", "die", "oom", "rename", "update"})
"""Container events after which a record may differ.

The CRI knows no pause; kill, stop and restart come with a die or start; exec_* and health_status, the bulk of all
events on a node with probes, change nothing a record holds.
"""
OURS = CHANGING - {"die", "oom"}
"""Events that an RPC of ours mostly is the cause of, which then looks for itself; an end is told without delay."""
IMAGE_CHANGING = frozenset({"pull", "load", "import", "tag", "untag", "delete", "prune", "create", "build"})
"""Image events after which the list of images may differ."""

UNANSWERED_SECONDS = 30.0
"""How long Docker may leave the list of all containers inspect_failed, without any event, before it counts as hung.

The list is made from memory and takes milliseconds, a second with a thousand containers on a starved machine; half a
minute without it, and without any event, is not load. With events coming it gets the same time once more, since Docker
evidently works. The list is asked for every `Pace.compare` seconds, so the view is trusted for at most 90 s after the
last sign of life, 120 s with events, and refuses questions from then on. A kubelet marks a node whose pods it could not
list for three minutes as not ready; before that, what the view last knew of pods that go on running serves it better
than an error, and Status reports a hung Docker within seconds anyway.
"""

Ended = Callable[[Record], bool]
"""Whether the process of a container that Docker calls running is gone."""

_MOST_COMPLAINTS = 32
"""Different reasons of one outage that are remembered as logged."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The watcher's times, in seconds."""

    compare: float = 60.0
    """Between two full compares with what Docker lists."""
    believe: float = 3.0
    """From finding the process of a running container gone to believing that and not Docker, whose own event takes a
    moment and brings the exit code."""
    inspect: float = 10.0
    """Bound on one inspect."""
    settle: float = 0.05
    """From an event of OURS to the look at it, which is then mostly not needed any more."""
    first_inspect: float = 3.0
    """Bound on one inspect of a rebuild, for which every question waits."""
    unanswered: float = UNANSWERED_SECONDS
    """From asking for the list of all containers to taking Docker for hung."""
    images: float = 1.0
    """How long a rebuild that has all containers waits for the list of images, by which containers name theirs."""
    retry: float = 1.0
    """From an inspect that failed to its first repetition; doubled each time."""
    reconnect_least: float = 0.1
    """From the loss of Docker to the first try to reach it; doubled each time."""
    reconnect_most: float = 5.0
    """Longest wait between two tries."""


@dataclass(slots=True, eq=False)
class _Link:
    """One connection to the event stream."""

    scope: deadline.Scope = field(default_factory=deadline.Scope)
    """Of everything asked while this connection stands; cancelled when it is lost."""
    ended: threading.Event = field(default_factory=threading.Event)
    reason: str = ""
    rebuilt: bool = False

    def end(self, reason: str) -> None:
        """Stop what goes on with this connection. The first reason counts."""
        self.reason = self.reason or reason
        self.ended.set()
        self.scope.cancel()


class Watcher:
    """Feeds a NodeView from its own threads."""

    def __init__(
        self,
        engine: Engine,
        view: NodeView,
        *,
        pace: Pace | None = None,
        ended: Ended = process_ended,
        on_connect: Callable[[], None] = lambda: None,
        before_first_sync: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` tells whether the process of a container that Docker calls running is gone.

        `on_connect` is called with each new connection to Docker, which may be to another daemon; it must not wait.
        `before_first_sync` is called when the view has all records for the first time and answers no question yet, and
        again if the connection to Docker is lost before it returns. It may use `NodeView.records`.
        """
        self._on_connect = on_connect
        self._before_first_sync = before_first_sync
        self._engine = engine
        self._view = view
        self._pace = pace or Pace()
        self._ended = ended
        self._refresher = Refresher(view, inspect_seconds=self._pace.inspect, retry_seconds=self._pace.retry)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._link = _Link()
        self._complaints: set[str] = set()
        """The reasons logged since the view was fed last."""
        self._events = 0
        """How many have come."""
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def start(self) -> None:
        """Begin to feed the view. Docker need not answer yet."""
        self._refresher.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads, and what they ask of Docker. The view answers nothing from then on."""
        with self._lock:
            self._stopping.set()
            link = self._link
        link.end("the shim is stopping")
        self._thread.join()
        self._refresher.stop()

    # The connection

    def _run(self) -> None:
        misses = 0
        while (link := self._next_link()) is not None:
            try:
                self._follow(link)
            except ShimError as error:
                link.end(str(error))
            except Exception as error:  # a view that is not fed must say so and be fed again, whatever went wrong
                log.exception("the view of docker failed")
                link.end(f"the view of docker failed: {error}")
            self._lose(link)
            misses = 0 if link.rebuilt else misses + 1
            self._stopping.wait(self._pause(misses))

    def _next_link(self) -> _Link | None:
        with self._lock:
            self._link = _Link()
            return None if self._stopping.is_set() else self._link

    def _pause(self, misses: int) -> float:
        """Seconds to wait for Docker after so many vain tries; shims of many nodes must not come in step."""
        longest = min(self._pace.reconnect_least * 2.0 ** min(misses, 16), self._pace.reconnect_most)
        return longest * random.SystemRandom().uniform(0.5, 1.0)

    def _follow(self, link: _Link) -> None:
        """Feed the view through one connection until it is lost.

        The events are asked for from a moment before the list on: Docker has a backlog of them, and none falls
        between the two. A thread of its own reads them at once, since Docker drops what a slow reader leaves.
        """
        reader = None
        try:
            with deadline.entered(link.scope), self._engine.events(since=time.time_ns()) as events:
                self._on_connect()
                epoch = self._view.begin_rebuild()
                reader = threading.Thread(target=self._read, args=(link, events), name="view-events", daemon=True)
                reader.start()
                with _ending(link):
                    link.rebuilt = self._rebuilt(epoch)
                    missing = self._missing()
                    while not link.ended.wait(self._pace.believe if missing else self._pace.compare):
                        missing = self._compare(missing)
        finally:
            if reader is not None:
                reader.join()

    def _lose(self, link: _Link) -> None:
        self._view.lose(link.reason)
        if self._stopping.is_set() or link.reason in self._complaints:
            return
        log.warning("docker is out of reach", reason=link.reason)
        if len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(link.reason)

    # The look at everything

    def _rebuilt(self, epoch: int) -> bool:
        self._refresher.list_images()
        listed = {container.id: container for container in self._listed() if may_be_of_a_pod(container)}
        looks: list[Callable[[], None]] = [
            partial(self._look_first, container_id, listed.get(container_id))
            for container_id in listed.keys() | self._view.records().keys()
        ]
        gather(looks)
        self._view.note_compare()
        self._before_first_sync()
        # One that was cut short, since this connection was lost meanwhile, is done again with the next.
        deadline.current().check("prepare the first answer")
        self._before_first_sync = lambda: None
        self._view.images.wait_listed(self._pace.images)
        if not self._view.complete_rebuild(epoch, patience=self._pace.first_inspect):
            return False
        self._complaints.clear()
        log.info("docker is watched", containers=len(listed))
        return True

    def _look_first(self, container_id: str, listed: ContainerSummary | None) -> None:
        fallback = None if listed is None else partial(from_list_only, listed=listed)
        self._refresher.refresh_first(container_id, seconds=self._pace.first_inspect, fallback=fallback)

    def _compare(self, missing_before: dict[str, Record]) -> dict[str, Record]:
        """Have everything looked at of which Docker's lists, or the processes there are, tell anything else.

        Gives the containers whose process is missing; those of `missing_before` that still are have ended.
        """
        missing = self._missing()
        for container_id in self._view.suspects(self._listed()) | missing.keys():
            self._refresher.mark(container_id)
        self._refresher.mark_images()
        self._view.note_compare()
        for container_id in [known for known, record in missing.items() if missing_before.get(known) == record]:
            log.warning("docker has missed the exit of a container", container=container_id)
            self._view.note_ended(missing.pop(container_id))
        return missing

    def _missing(self) -> dict[str, Record]:
        return {container_id: record for container_id, record in self._view.records().items() if self._ended(record)}

    def _listed(self) -> list[ContainerSummary]:
        """List all containers. DeadlineExceeded for a Docker that hangs; see UNANSWERED_SECONDS."""
        before = self._events
        try:
            return self._listed_once()
        except DeadlineExceeded:
            if self._events == before:
                raise
        return self._listed_once()

    def _listed_once(self) -> list[ContainerSummary]:
        with answered_within(self._pace.unanswered, what="list containers"):
            return self._engine.list_containers()

    # The events

    def _read(self, link: _Link, events: Iterable[Event]) -> None:
        reason = "the reader of docker's events failed"
        try:
            for event in events:
                self._events += 1
                self._view.note_event()
                self._take(event)
            reason = "docker ended its event stream"
        except ShimError as error:
            reason = str(error)
        finally:
            # Here and not in the other thread, which may be waiting for an answer: from now on nothing is certain.
            link.end(reason)
            self._view.lose(link.reason)

    def _take(self, event: Event) -> None:
        if event.type == "container":
            self._take_container_event(event)
        elif event.type == "image" and event.action in IMAGE_CHANGING:
            self._refresher.mark_images()

    def _take_container_event(self, event: Event) -> None:
        container_id = event.actor.id
        if event.action == "destroy":
            self._view.forget(container_id)
        elif event.action in CHANGING and self._concerns_us(event):
            after = self._pace.settle if event.action in OURS else 0.0
            self._refresher.mark_changed(container_id, stamp=event.time_nano, after=after)

    def _concerns_us(self, event: Event) -> bool:
        name = (event.actor.attributes or {}).get("name", names.PREFIX)
        return name.startswith(names.PREFIX) or self._view.knows(event.actor.id)


@contextmanager
def _ending(link: _Link) -> Iterator[None]:
    """End the connection with what goes wrong in the block.

    Here and not where the event stream is closed already: then its reader would be the first with a reason, and that
    the stream has ended is only the consequence.
    """
    try:
        yield
    except ShimError as error:
        link.end(str(error))
        raise
    except Exception as error:
        link.end(f"the view of docker failed: {error}")
        raise
