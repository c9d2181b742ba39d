"""The workers of the view's queue: inspect containers and images that may have changed, and list the images."""

import sys
import threading
import time
from functools import partial

import structlog

from shim.base import deadline
from shim.domain import references
from shim.domain.errors import Cancelled, InvalidArgument, ShimError, Unavailable
from shim.engine.failures import answered_within
from shim.view.image_pace import QUIET_SECONDS, ImagePace
from shim.view.image_view import IMAGES
from shim.view.inspector import Fallback
from shim.view.node_view import NodeView
from shim.view.translate import inspect_failed
from shim.view.work_queue import WorkQueue

WORKERS = 6
SLOW_WORKERS = 3
"""Maximum workers that retry failed keys at the same time."""
UNKNOWN_AFTER = 2
"""After this many failures the next failed inspect makes the state UNKNOWN. Fewer failures do not, because kubelets
kill UNKNOWN containers. Failures while Docker cannot be reached do not count."""
LIST_SECONDS = 300.0
"""Timeout of listing all images. The containerd image store takes 16 s for 3,000 images."""
LIST_SHARE = 0.001
"""Maximum share of time that Docker may spend on lists of all images."""
LONGEST_PERIOD = 3600.0
"""Maximum seconds between two lists."""
BACKLOG_SHARE = 0.04
"""The share instead of LIST_SHARE if an image would wait longer for its inspect than for a list, as after a `docker
load` of thousands of images. With the containerd image store an inspect takes as long as a list of fifteen images."""
INSPECTED_AT_START = 200
"""Up to this number of images, all are inspected after a list, so that lists show their users. With more images, which
would take Docker seconds to minutes, only images that change or that a client names are inspected."""
BURST_SECONDS = 0.1
"""Delay from an event to the inspect of its image. A build, load or pull sends several events, and an RPC mostly
publishes its own changes within this time."""

_IMAGE = "image "
"""The prefix of the keys of single images."""
_ALWAYS = sys.maxsize
"""A stamp later than any inspect, so that the inspect is never skipped."""

log = structlog.get_logger(__name__)


class Refresher:
    """Processes the queue: inspects containers and images, and lists the images. Thread-safe."""

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
        """When the next list is due if an image waits longer for its inspect, by the monotonic clock."""
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
        """Queue an inspect that begins after this call. The key of a container is its id."""
        self._note(key, _ALWAYS)
        self._queue.add(key)

    def enqueue_changed(self, container_id: str, *, stamp: int, after: float) -> None:
        """Queue an inspect after Docker's event at `stamp`, ns since the epoch, 0 if unknown.

        It begins in `after` seconds. It is skipped if another inspect has begun since the event.
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
        """Inspect a container in this thread, because a sync waits for the result; queue a retry after a failure.

        Raise Unavailable and Cancelled, which concern all containers.
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
            # Docker is unavailable or the server is stopping, so this does not count as a failure of the container.
            self._queue.add_after(key, self._retry_seconds)
            return
        if succeeded:
            self._queue.forget(key)
            if key.startswith(_IMAGE):
                self._view.images.note_seen(key.removeprefix(_IMAGE), min(stamp, began))
        else:
            self._queue.add_rate_limited(key)

    def _postpone(self, key: str, stamp: int) -> bool:
        """If an image needs an inspect and its turn has not come, queue it again and return True."""
        if self._is_known(key, stamp):
            self._pace.drop(key)
            return False
        wait = self._pace.wait(key, patient=stamp == _ALWAYS)
        if wait:
            self._note(key, stamp)
            self._queue.add_after(key, wait)
            now = time.monotonic()
            if now + wait > self._backlog_due:
                self._list_due = min(self._list_due, self._backlog_due)
                if wait > QUIET_SECONDS:  # a single image that changes all the time is worth no list
                    self._queue.add_after(IMAGES, max(0.0, self._backlog_due - now))
        return bool(wait)

    def _is_known(self, key: str, stamp: int) -> bool:
        """Return whether a container or image has been inspected since its last event."""
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
        except Exception:  # an unexpected answer must not end this worker thread
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
        """List the images. If that fails, reads of images report the cause."""
        began = time.monotonic()
        try:
            with answered_within(LIST_SECONDS, what="list Docker's images"):
                self._view.images.refresh()
        except Cancelled:
            raise
        except ShimError as error:
            self._view.images.note_failure(error)
            # Even Unavailable counts as a failure here, with back-off: Docker serves containers, but not images.
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
