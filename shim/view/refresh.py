"""The threads that look again at what has changed."""

import sys
import threading
from functools import partial

import structlog

from shim.base import deadline
from shim.domain.errors import Cancelled, ShimError, Unavailable
from shim.engine.hanging import answered_within
from shim.view.image_view import IMAGES
from shim.view.node import Fallback, NodeView
from shim.view.translate import inspect_failed
from shim.view.work_queue import WorkQueue

WORKERS = 6
SLOW_WORKERS = 3
"""How many of the workers may be busy with what has failed before."""
DOUBT_AFTER = 2
"""A look that fails after so many failures makes the state UNKNOWN: kubelets kill what is, so not the first time.
That Docker cannot be reached at all is no failure of a container's."""
LIST_SECONDS = 60.0
"""Bound on listing all images and inspecting those that are new. What has been inspected by then is kept."""

_NEVER_SEEN = sys.maxsize
"""A time, ns since the epoch, after which no look has begun."""
BURST_SECONDS = 0.02
"""From a change of the images to the list of them. A build, a removal, a pull of several come as many events; and what
an RPC has changed it has looked at itself, with less to do for Docker while it does so."""

log = structlog.get_logger(__name__)


class Refresher:
    """Inspects marked containers, and lists the images when they are marked. Thread-safe."""

    def __init__(self, view: NodeView, *, inspect_seconds: float, retry_seconds: float) -> None:
        """`inspect_seconds` bounds one inspect, `retry_seconds` is the wait after the first that failed."""
        self._view = view
        self._inspect_seconds = inspect_seconds
        self._dirty = WorkQueue(slow_workers=SLOW_WORKERS, retry_seconds=retry_seconds)
        self._lock = threading.Lock()
        self._stamps: dict[str, int] = {}
        self._scope = deadline.Scope()
        self._threads = [
            threading.Thread(target=self._work, name=f"view-refresh-{number}", daemon=True) for number in range(WORKERS)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and what they ask of Docker."""
        self._dirty.close()
        self._scope.cancel()
        for thread in self._threads:
            thread.join()

    def mark(self, container_id: str) -> None:
        """Ask for an inspect that begins after this call."""
        self._note(container_id, _NEVER_SEEN)
        self._dirty.mark(container_id)

    def mark_changed(self, container_id: str, *, stamp: int, after: float) -> None:
        """Ask for an inspect after an event of Docker's of the time `stamp`, ns since the epoch, 0 if not known.

        It is made in `after` seconds, unless by then somebody else has made one that began after the event.
        """
        self._note(container_id, stamp or _NEVER_SEEN)
        self._dirty.mark(container_id, after=after)

    def list_images(self) -> None:
        """Ask for a list of the images that begins after this call, at once and whatever has failed before."""
        self._dirty.forgive(IMAGES)
        self._dirty.mark(IMAGES)

    def mark_images(self) -> None:
        """Ask for a list of the images that begins after this call, at the end of the burst."""
        self._dirty.mark(IMAGES, after=BURST_SECONDS)

    def refresh_first(self, container_id: str, *, seconds: float, fallback: Fallback | None) -> None:
        """Inspect a container in this thread for a rebuild, which needs some answer soon; the rest is done later.

        Unavailable and Cancelled are raised: they are not about this container.
        """
        if self._refreshed(container_id, seconds=seconds, fallback=fallback):
            self._dirty.forgive(container_id)
        else:
            self._dirty.mark_failed(container_id)

    def _work(self) -> None:
        with deadline.entered(self._scope):
            while (key := self._dirty.wait_next()) is not None:
                self._look(key)

    def _look(self, key: str) -> None:
        try:
            known = self._view.seen_since(key, self._stamp_of(key)) or self._tried(key)
        except (Unavailable, Cancelled):
            # Docker is gone, or the shim is stopping: this says nothing about the container.
            self._dirty.put_off(key)
            return
        if known:
            self._dirty.done(key)
        else:
            self._dirty.failed(key)

    def _note(self, container_id: str, stamp: int) -> None:
        with self._lock:
            self._stamps[container_id] = max(stamp, self._stamps.get(container_id, 0))

    def _stamp_of(self, key: str) -> int:
        """Tell after what a look must have begun; what is tried again because it failed is looked at in any case."""
        with self._lock:
            return self._stamps.pop(key, _NEVER_SEEN)

    def _tried(self, key: str) -> bool:
        in_doubt = self._dirty.failures(key) >= DOUBT_AFTER
        fallback = partial(inspect_failed, message="docker does not answer an inspect of it") if in_doubt else None
        return self._refreshed(key, seconds=self._inspect_seconds, fallback=fallback)

    def _refreshed(self, key: str, *, seconds: float, fallback: Fallback | None) -> bool:
        try:
            if key == IMAGES:
                self._refresh_images()
            else:
                with deadline.bound(seconds):
                    self._view.refresh_container(key, fallback=fallback)
        except (Unavailable, Cancelled):
            raise
        except ShimError as error:
            self._complain(key, error)
            return False
        except Exception:  # an answer nobody foresaw must not end the thread that looks at all the others
            log.exception("refresh failed", of=key)
            return False
        return True

    def _refresh_images(self) -> None:
        """List the images, and keep the reason if that fails: it is what questions about them are refused with."""
        try:
            with answered_within(LIST_SECONDS, what="list docker's images and inspect the new ones"):
                self._view.images.refresh()
        except Cancelled:
            raise
        except ShimError as error:
            self._view.images.note_failure(error)
            # Also where it was Unavailable: the containers are known, so it is the image store, and asked less often.
            raise ShimError(str(error)) from error

    def _complain(self, key: str, error: ShimError) -> None:
        if not self._dirty.failures(key):
            log.warning("refresh failed, will be repeated", of=key, error=str(error))
