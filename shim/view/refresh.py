"""The workers of the view's queue. They inspect containers and images that may have changed, and list the images."""

import sys
import threading
import time
from functools import partial

import structlog

from shim.base import deadline
from shim.domain import references
from shim.domain.errors import Cancelled, InvalidArgument, ShimError, Unavailable
from shim.engine.failures import answered_within
from shim.view.image_pace import ImagePace
from shim.view.image_view import IMAGES
from shim.view.inspector import Fallback
from shim.view.node_view import NodeView
from shim.view.translate import inspect_failed
from shim.view.work_queue import WorkQueue

WORKERS = 6
SLOW_WORKERS = 3
"""How many of the workers may process keys that have failed before."""
UNKNOWN_AFTER = 2
"""After this many failures the next failed inspect makes the state UNKNOWN. The first failures do not, since kubelets
kill UNKNOWN containers. Failures while Docker cannot be reached do not count."""
LIST_SECONDS = 300.0
"""Bound on listing all images: the containerd image store takes 16 s for 3,000 images."""
LIST_SHARE = 0.001
"""Share of Docker's time that lists of all images may take."""
LONGEST_PERIOD = 3600.0
"""Maximum seconds between two lists."""
BACKLOG_SHARE = 0.04
"""The same share while changed images wait longer for their inspects than for a list, as after a `docker load` of
thousands: with the containerd image store an inspect takes as long as a list of fifteen images."""
INSPECTED_AT_START = 200
"""Up to this number, all images are inspected after a list, so that lists show their users. Otherwise only images that
change or that a client asks for are inspected: Docker would need seconds to minutes for all of them."""
BURST_SECONDS = 0.1
"""From an event to the inspect of its image. A build, load or pull sends several events; and an RPC publishes its own
changes, mostly within this time."""

_IMAGE = "image "
"""The prefix of the keys of single images."""
_ALWAYS = sys.maxsize
"""A stamp that no inspect is newer than, so that the inspect is never skipped."""

log = structlog.get_logger(__name__)


class Refresher:
    """Inspects the containers and images in the queue, and lists the images when they are in it. Thread-safe."""

    def __init__(self, view: NodeView, *, inspect_seconds: float, retry_seconds: float) -> None:
        """`inspect_seconds` bounds an inspect; `retry_seconds` is the wait after the first failure."""
        self._view = view
        self._inspect_seconds = inspect_seconds
        self._retry_seconds = retry_seconds
        self._queue = WorkQueue(slow_workers=SLOW_WORKERS, retry_seconds=retry_seconds)
        self._lock = threading.Lock()
        self._stamps: dict[str, int] = {}
        """The time of the last event of each queued object; an inspect that began later is new enough."""
        self._pace = ImagePace()
        self._list_due = 0.0
        """When the next list of the images is due, by the monotonic clock."""
        self._backlog_due = 0.0
        """When it is due if too many images wait."""
        self._scope = deadline.Scope()
        self._threads = [
            threading.Thread(target=self._work, name=f"view-refresh-{number}", daemon=True) for number in range(WORKERS)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and their calls to Docker."""
        self._queue.shut_down()
        self._scope.cancel()
        for thread in self._threads:
            thread.join()

    def row(self) -> dict[str, object]:
        """Return the state of the queue, for people."""
        return self._queue.row()

    def enqueue(self, key: str) -> None:
        """Queue an inspect that begins after this call; the key of a container is its id."""
        self._note(key, _ALWAYS)
        self._queue.add(key)

    def enqueue_changed(self, container_id: str, *, stamp: int, after: float) -> None:
        """Queue an inspect after Docker's event at `stamp`, ns since the epoch, 0 if unknown.

        It begins in `after` seconds, and is skipped if by then an RPC has begun an inspect after the event.
        """
        self._note(container_id, stamp or _ALWAYS)
        self._queue.add_after(container_id, after)

    def enqueue_image(self, reference: str, *, stamp: int) -> None:
        """Queue an inspect of an image after Docker's event, as `enqueue_changed` does."""
        if references.image_id(reference) is None:  # the name of a pull
            try:
                reference = references.canonical(reference)
            except InvalidArgument:  # the next list includes the image
                return
        self._note(_IMAGE + reference, stamp or _ALWAYS)
        self._view.images.note_event(reference, stamp or time.time_ns())
        self._queue.add_after(_IMAGE + reference, BURST_SECONDS)

    def enqueue_images(self) -> None:
        """Queue a list of the images if one is due."""
        if time.monotonic() >= self._list_due:
            self._queue.add(IMAGES)

    def enqueue_images_now(self) -> None:
        """Queue a list of the images that begins after this call, at once despite earlier failures."""
        self._queue.forget(IMAGES)
        self._queue.add(IMAGES)

    def refresh_first(self, container_id: str, *, seconds: float, fallback: Fallback | None) -> None:
        """Inspect a container in this thread for a sync, which needs a result soon; queue a retry after a failure.

        Raise Unavailable and Cancelled, which do not concern this container.
        """
        if self._refresh(container_id, seconds=seconds, fallback=fallback):
            self._queue.forget(container_id)
        else:
            self._queue.add_rate_limited(container_id)

    def _work(self) -> None:
        with deadline.entered(self._scope):
            while (key := self._queue.get()) is not None:
                self._process(key)
                self._queue.done(key)

    def _process(self, key: str) -> None:
        stamp, began = self._take_stamp(key), time.time_ns()
        try:
            if key.startswith(_IMAGE) and self._postpone(key, stamp):
                return
            succeeded = self._is_known(key, stamp) or self._try_refresh(key)
        except (Unavailable, Cancelled):
            # Docker is gone or the server is stopping: this is no failure of the container.
            self._queue.add_after(key, self._retry_seconds)
            return
        if succeeded:
            self._queue.forget(key)
            if key.startswith(_IMAGE):
                self._view.images.note_seen(key.removeprefix(_IMAGE), min(stamp, began))
        else:
            self._queue.add_rate_limited(key)

    def _postpone(self, key: str, stamp: int) -> bool:
        """Queue an image again and return True if it needs an inspect and its turn has not come."""
        if self._is_known(key, stamp):
            self._pace.drop(key)
            return False
        wait = self._pace.wait(key, patient=stamp == _ALWAYS)
        if wait:
            self._note(key, stamp)
            self._queue.add_after(key, wait)
            if time.monotonic() + wait > self._backlog_due:
                self._list_due = min(self._list_due, self._backlog_due)
        return bool(wait)

    def _is_known(self, key: str, stamp: int) -> bool:
        """Return whether an RPC has inspected a container or image after its last event."""
        if key.startswith(_IMAGE):
            return self._view.images.asked_after(key.removeprefix(_IMAGE), stamp)
        return self._view.inspected_after(key, stamp)

    def _note(self, container_id: str, stamp: int) -> None:
        with self._lock:
            self._stamps[container_id] = max(stamp, self._stamps.get(container_id, 0))

    def _take_stamp(self, key: str) -> int:
        """Return the time after which an inspect is new enough; a retry is never skipped."""
        with self._lock:
            return self._stamps.pop(key, _ALWAYS)

    def _try_refresh(self, key: str) -> bool:
        failed_often = self._queue.num_requeues(key) >= UNKNOWN_AFTER
        fallback = partial(inspect_failed, message="Docker does not answer an inspect of it") if failed_often else None
        return self._refresh(key, seconds=self._inspect_seconds, fallback=fallback)

    def _refresh(self, key: str, *, seconds: float, fallback: Fallback | None) -> bool:
        """Refresh a container, an image or all images; return whether it succeeded. Raise Unavailable and Cancelled."""
        try:
            if key == IMAGES:
                self._refresh_images()
            elif key.startswith(_IMAGE):
                self._refresh_image(key)
            else:
                with deadline.bound(seconds):
                    self._view.refresh_container(key, fallback=fallback)
        except (Unavailable, Cancelled):
            raise
        except ShimError as error:
            self._log_first_failure(key, error)
            return False
        except Exception:  # an unexpected answer must not end the thread that inspects all other objects
            log.exception("refresh failed", key=key)
            return False
        return True

    def _refresh_image(self, key: str) -> None:
        began = time.monotonic()
        try:
            with answered_within(self._inspect_seconds, what=f"inspect {key}"):
                self._view.images.refresh_one(key.removeprefix(_IMAGE))
        finally:
            self._pace.end(key, seconds=time.monotonic() - began)

    def _refresh_images(self) -> None:
        """List the images; keep the cause of a failure for reads of images."""
        began = time.monotonic()
        try:
            with answered_within(LIST_SECONDS, what="list Docker's images"):
                self._view.images.refresh()
        except Cancelled:
            raise
        except ShimError as error:
            self._view.images.note_failure(error)
            # Also for Unavailable: the containers are known, so the image store fails, and backoff applies.
            raise ShimError(str(error)) from error
        ended = time.monotonic()
        self._list_due = ended + min((ended - began) / LIST_SHARE, LONGEST_PERIOD)
        self._backlog_due = min(self._list_due, ended + (ended - began) / BACKLOG_SHARE)
        self._pace.clear()
        without_user = self._view.images.not_inspected()
        if len(without_user) <= INSPECTED_AT_START:
            for image_id in without_user:
                self.enqueue(_IMAGE + image_id)

    def _log_first_failure(self, key: str, error: ShimError) -> None:
        if not self._queue.num_requeues(key):
            log.warning("refresh failed, will be retried", key=key, error=str(error))
