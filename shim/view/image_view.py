"""The images of the node view: listed, or inspected one at a time, and never older than a read that ended before.

They are synced beside the containers, and may be unknown while those are known: an image store that fails or is slow
must not take the pods away.
"""

import threading
from functools import partial, reduce

from shim.base.single_flight import CoalescedRefresh
from shim.domain.errors import NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.interface import Engine
from shim.view import translate
from shim.view.availability import Availability
from shim.view.image_index import ImageDetails, ImageIndex
from shim.view.in_flight_reads import InFlightReads
from shim.view.records import ImageRecord

IMAGES = "images"
"""The key of lists of all images; inspects of containers have the container's id, hexadecimal digits."""
ONE_IMAGE = "image"
"""The key of inspects of single images. Any that ends first supersedes the others, and so does a list that begins or
ends: the result of an inspect is thus newer than what a list in flight was requested for."""
NOT_LISTED = "docker's images have not been listed yet"
LIST_WAIT_SECONDS = 1.0
"""How long `is_listed` waits for a list in flight: most lists of a start are complete by then."""


class ImagesUnknown(Unavailable):
    """The containers of this node are known, its images are not; the message says why."""


class ImageView:
    """The images of this node. Thread-safe.

    Its reads raise Unavailable as those of the `shim.view.node.NodeView` that it is a part of, and ImagesUnknown until
    all images have been listed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        changed: threading.Condition,
        availability: Availability,
        reads: InFlightReads,
        timeout: float,
    ) -> None:
        """Create an empty view; `changed` is the lock of the node view, which guards `availability` and `reads`.

        `timeout` is how many seconds a read waits for the first list of a connection to Docker.
        """
        self._engine = engine
        self._changed = changed
        self._availability = availability
        self._listed = Availability(changed, timeout=timeout, initially=NOT_LISTED, refusal=ImagesUnknown)
        self._reads = reads
        self._index = ImageIndex(())
        self._details = ImageDetails()
        self._coalesced: CoalescedRefresh[None] = CoalescedRefresh(self.refresh, what="list images")

    # Reads

    def all(self) -> tuple[ImageRecord, ...]:
        """Return all images."""
        return self._current().records

    def find(self, reference: str) -> ImageRecord | None:
        """Return the image of this id, unique id prefix, tag or digest, in any form; None if there is none.

        Raise InvalidArgument for what is no reference, and for a prefix that several ids share.
        """
        return self._current().find(reference)

    def last_known(self, reference: str) -> ImageRecord | None:
        """Return what `find` would by what is known of images now, even if outdated or incomplete. Never wait.

        For answers that are about another object and only name an image.
        """
        with self._changed:
            index = self._index
        return index.find(reference)

    def is_listed(self, *, timeout: float = LIST_WAIT_SECONDS) -> bool:
        """Whether all images are known, after a wait of at most `timeout` seconds for a list in flight.

        Raise Unavailable while disconnected.
        """
        with self._changed:
            self._availability.wait_available()
        return self.wait_listed(timeout)

    def wait_listed(self, seconds: float) -> bool:
        """Whether all images are known, after a wait of at most `seconds`, whether the containers are known or not."""
        with self._changed:
            try:
                self._listed.wait_available(timeout=seconds)
            except ImagesUnknown:
                return False
            return True

    def count(self) -> int:
        """Return the number of images, also while disconnected."""
        with self._changed:
            return len(self._index.records)

    def outage(self) -> str:
        """Return why images are not known; empty while they are, connected or not."""
        with self._changed:
            return self._listed.outage or ""

    def _current(self) -> ImageIndex:
        with self._changed:
            self._availability.wait_available()
            self._listed.wait_available()
            return self._index

    # Sync

    def begin_sync(self) -> None:
        """Begin a sync: events arrive from now on, and earlier lists do not count. The lock is held."""
        self._listed.disconnect(NOT_LISTED)
        self._listed.begin_sync()
        # A list in flight may be older than the first event: it is repeated.
        self._reads.supersede(IMAGES)
        self._reads.supersede(ONE_IMAGE)

    def disconnect(self, reason: str) -> None:
        """Refuse reads while Docker cannot be reached, and end those that wait for a list. The lock is held."""
        self._listed.disconnect(reason)

    def note_failure(self, error: ShimError) -> None:
        """Record why the images could not be listed. Those that are known stay known."""
        with self._changed:
            if self._listed.outage is not None:
                self._listed.disconnect(f"docker's images are not known, listing them is repeated: {error}")

    # Writes after a change

    def refresh(self) -> None:
        """List the images and publish them. Raise what the list raises; the images then stay as they are.

        Strategy: a list may take long, so a change of one image does not supersede it but is applied to its answer.
        Only a list that ended first, or a new connection, supersedes it; then the images are listed again.
        """
        while True:
            with self._reads.reading(IMAGES, lock=self._changed) as read:
                with self._changed:
                    self._reads.supersede(ONE_IMAGE)
                listed = self._engine.list_images()
                details = self._details.of_listed(self._engine, listed)
                images = ImageIndex(translate.image_record(image, details.get(image.id)) for image in listed)
                with self._changed:
                    if not read.superseded:
                        self._reads.supersede(IMAGES)
                        self._reads.supersede(ONE_IMAGE)
                        self._index = reduce(lambda index, update: update(index), read.updates, images)
                        self._listed.complete_sync(self._listed.begin_sync())
                        return

    def ensure_fresh(self) -> None:
        """List the images once more, after this call; one list serves all callers that come before it begins."""
        self._coalesced.do()

    def refresh_one(self, reference: str) -> ImageRecord | None:
        """Inspect one image and publish it, which costs much less than a list. None if Docker has none of this name.

        Raise what the inspect raises otherwise; the images then stay as they are.
        """
        while True:
            with self._reads.reading(ONE_IMAGE, lock=self._changed) as read:
                try:
                    inspect = self._engine.inspect_image(reference)
                except NotFound:
                    return None
                record = translate.image_record(inspect, inspect)
                with self._changed:
                    if not read.superseded:
                        self._reads.supersede(ONE_IMAGE)
                        self._reads.apply_update(IMAGES, partial(ImageIndex.with_record, record=record))
                        self._index = self._index.with_record(record)
                        return record

    def lookup(self, reference: str) -> ImageRecord | None:
        """Find one image by an inspect, while not all images are known. Raise InvalidArgument for no reference."""
        ImageIndex(()).find(reference)
        return self.refresh_one(reference)

    def forget(self, image_id: ImageId) -> None:
        """Remove the record of an image that has been removed, when the images cannot be listed."""
        with self._changed:
            self._reads.supersede(ONE_IMAGE)
            self._reads.apply_update(IMAGES, partial(ImageIndex.without, image_id=image_id))
            self._index = self._index.without(image_id)

    def confirm(self, reference: str, image_id: ImageId, *, since: int) -> ImageRecord | None:
        """Confirm that Docker had this image under this name at the time `since`, ns by the monotonic clock.

        Return its record if the view has it under that name, else None; None also while not all images are known. The
        name is added to the answers of lists that began before: Docker may have made them before it had the image.
        Raise Unavailable while disconnected.
        """
        with self._changed:
            self._availability.wait_available()
            record = None if self._listed.outage else self._index.find(reference)
            if record is None or record.id != image_id:
                return None
            self._reads.supersede(ONE_IMAGE)
            update = partial(ImageIndex.with_name, reference=reference, record=record)
            self._reads.apply_update(IMAGES, update, since=since)
            return record
