"""The workers of the view's queue: each inspects a container that may have changed, or lists the images."""

import sys
import threading
from functools import partial

import structlog

from shim.base import deadline
from shim.domain.errors import Cancelled, ShimError, Unavailable
from shim.engine.hanging import answered_within
from shim.view.image_view import IMAGES
from shim.view.inspector import Fallback
from shim.view.node import NodeView
from shim.view.translate import inspect_failed
from shim.view.work_queue import WorkQueue

WORKERS = 6
SLOW_WORKERS = 3
"""How many of the workers may process keys that have failed before."""
UNKNOWN_AFTER = 2
"""An inspect that fails after so many failures makes the state UNKNOWN; not the first, since kubelets kill a container
that is. Failures while Docker cannot be reached are not those of a container."""
LIST_SECONDS = 60.0
"""Bound on listing all images and inspecting those that are new. What has been inspected by then is kept."""
BURST_SECONDS = 0.02
"""From a change of the images to the list of them. A build, a removal, a pull of several come as many events; and what
an RPC has changed it has refreshed itself, with less for Docker to do at the same time."""

_ALWAYS = sys.maxsize
"""A time, ns since the epoch, after which no inspect has begun: so the container is inspected in any case."""

log = structlog.get_logger(__name__)


class Refresher:
    """Inspects the containers in the queue, and lists the images when they are in it. Thread-safe."""

    def __init__(self, view: NodeView, *, inspect_seconds: float, retry_seconds: float) -> None:
        """`inspect_seconds` bounds one inspect, `retry_seconds` is the wait after the first failure."""
        self._view = view
        self._inspect_seconds = inspect_seconds
        self._retry_seconds = retry_seconds
        self._queue = WorkQueue(slow_workers=SLOW_WORKERS, retry_seconds=retry_seconds)
        self._lock = threading.Lock()
        self._stamps: dict[str, int] = {}
        """The time of the last event of each queued container; an inspect that began after it is new enough."""
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

    def enqueue(self, container_id: str) -> None:
        """Queue an inspect that begins after this call."""
        self._note(container_id, _ALWAYS)
        self._queue.add(container_id)

    def enqueue_changed(self, container_id: str, *, stamp: int, after: float) -> None:
        """Queue an inspect after an event of Docker's of the time `stamp`, ns since the epoch, 0 if not known.

        It begins in `after` seconds, and is skipped if by then an RPC has made one that began after the event.
        """
        self._note(container_id, stamp or _ALWAYS)
        self._queue.add_after(container_id, after)

    def enqueue_images(self) -> None:
        """Queue a list of the images that begins after this call, at the end of the burst."""
        self._queue.add_after(IMAGES, BURST_SECONDS)

    def enqueue_images_now(self) -> None:
        """Queue a list of the images that begins after this call, at once and whatever has failed before."""
        self._queue.forget(IMAGES)
        self._queue.add(IMAGES)

    def refresh_first(self, container_id: str, *, seconds: float, fallback: Fallback | None) -> None:
        """Inspect a container in this thread for a sync, which needs some result soon; a failure is retried later.

        Raise Unavailable and Cancelled: they are not about this container.
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
        try:
            succeeded = self._view.inspected_after(key, self._take_stamp(key)) or self._try_refresh(key)
        except (Unavailable, Cancelled):
            # Docker is gone, or the shim is stopping: this is no failure of the container.
            self._queue.add_after(key, self._retry_seconds)
            return
        if succeeded:
            self._queue.forget(key)
        else:
            self._queue.add_rate_limited(key)

    def _note(self, container_id: str, stamp: int) -> None:
        with self._lock:
            self._stamps[container_id] = max(stamp, self._stamps.get(container_id, 0))

    def _take_stamp(self, key: str) -> int:
        """Return the time after which an inspect is new enough; a retry, which has none, is never skipped."""
        with self._lock:
            return self._stamps.pop(key, _ALWAYS)

    def _try_refresh(self, key: str) -> bool:
        failed_often = self._queue.num_requeues(key) >= UNKNOWN_AFTER
        fallback = partial(inspect_failed, message="docker does not answer an inspect of it") if failed_often else None
        return self._refresh(key, seconds=self._inspect_seconds, fallback=fallback)

    def _refresh(self, key: str, *, seconds: float, fallback: Fallback | None) -> bool:
        """Refresh a container or the images, and return whether that succeeded. Raise Unavailable and Cancelled."""
        try:
            if key == IMAGES:
                self._refresh_images()
            else:
                with deadline.bound(seconds):
                    self._view.refresh_container(key, fallback=fallback)
        except (Unavailable, Cancelled):
            raise
        except ShimError as error:
            self._log_first_failure(key, error)
            return False
        except Exception:  # an unforeseen answer must not end the thread that inspects all other containers
            log.exception("refresh failed", key=key)
            return False
        return True

    def _refresh_images(self) -> None:
        """List the images; keep the cause of a failure, which reads of images are refused with."""
        try:
            with answered_within(LIST_SECONDS, what="list docker's images and inspect the new ones"):
                self._view.images.refresh()
        except Cancelled:
            raise
        except ShimError as error:
            self._view.images.note_failure(error)
            # Unavailable as well: the containers are known, so it is the image store, and retried with backoff.
            raise ShimError(str(error)) from error

    def _log_first_failure(self, key: str, error: ShimError) -> None:
        if not self._queue.num_requeues(key):
            log.warning("refresh failed, will be retried", key=key, error=str(error))
