"""The images of the node view. A changed image is inspected; lists of all images are rare.

Images are synced separately from containers, so that a slow or failing image store does not hide the pods. Docker takes
0.5 s to list 10,000 images; with the containerd image store it takes 5 s to list 1,000. Only readers of all images wait
for a list, and only for the first.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shim.domain import references
from shim.domain.errors import NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId
from shim.engine.interface import Engine
from shim.view import translate
from shim.view.availability import Availability
from shim.view.image_index import ImageIndex
from shim.view.in_flight_reads import InFlightReads, Moment, Read
from shim.view.records import ImageRecord

IMAGES = "images"
"""The key of lists of all images among the reads; the key of a container's inspect is its id."""
ONE_IMAGE = "image"
"""The key of inspects of single images. The start and the end of a list supersede them, so that a published inspect is
newer than a list in flight. An inspect of another image does not supersede them."""
NOT_LISTED = "Docker's images have not been listed yet"


class ImagesUnknown(Unavailable):
    """The images of this node are unknown for the reason in the message, although its containers are known."""


class ImageView:
    """The images of this node. Thread-safe.

    Reads raise Unavailable as the reads of `NodeView` do, and ImagesUnknown until all images have been listed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        changed: threading.Condition,
        availability: Availability,
        reads: InFlightReads,
        timeout: float,
        clock: Callable[[], Moment],
    ) -> None:
        """Create an empty view; `changed` is the lock of the node view, which guards `availability` and `reads`.

        A read waits up to `timeout` seconds for the first list after a connection to Docker.
        """
        self._engine = engine
        self._changed = changed
        self._availability = availability
        self._listed = Availability(changed, timeout=timeout, initially=NOT_LISTED, refusal=ImagesUnknown)
        self._reads = reads
        self._clock = clock
        self._index = ImageIndex(())
        self._asked: dict[str, Moment] = {}
        """When the call behind each record began, by image id, or by a name from `confirm`."""
        self._listed_from: Moment | None = None
        """When the last list of all images began."""
        self._unseen: dict[str, int] = {}
        """Images not inspected since their last event: time of the event, by the id or name in the event."""
        self._being_removed: dict[ImageId, ImageRecord] = {}
        """Images that a call is removing, with their former names."""

    # Reads

    def all(self) -> tuple[ImageRecord, ...]:
        """Return all images."""
        with self._changed:
            self._wait_listed_locked()
            return self._index.records

    def find(self, reference: str) -> ImageRecord | None:
        """Return the image with this id, unique id prefix, tag or digest, in any form; None if there is none.

        Raise InvalidArgument for an invalid reference and for an ambiguous prefix.
        """
        with self._changed:
            self._wait_listed_locked()
            return self._index.find(reference)

    def find_listed(self, reference: str) -> ImageRecord | None:
        """Find an image as `find` does, but do not wait for a list; return None until all images are known."""
        with self._changed:
            self._availability.wait_available()
            return None if self._listed.outage is not None else self._index.find(reference)

    def last_known(self, reference: str) -> ImageRecord | None:
        """Find an image among the last known images, which may be outdated or incomplete. Never wait.

        Use it for answers about other objects, such as containers, that only name an image.
        """
        with self._changed:
            return self._index.find(reference)

    def is_listed(self) -> bool:
        """Return whether all images are known. Raise Unavailable while disconnected."""
        with self._changed:
            self._availability.wait_available()
            return self._listed.outage is None

    def wait_listed(self, seconds: float) -> bool:
        """Wait up to `seconds` until all images are known; return whether they are."""
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
        """Return why images are unknown; empty while they are known."""
        with self._changed:
            return self._listed.outage or ""

    def not_inspected(self) -> list[ImageId]:
        """Return the images that are known only from a list."""
        with self._changed:
            return [record.id for record in self._index.records if not record.inspected]

    def asked_after(self, reference: str, stamp: int) -> bool:
        """Return whether the record of an image includes an event, because its inspect or a list began later.

        `stamp` is the event's `timeNano`, `reference` the id or the canonical name in the event.
        """
        with self._changed:
            known = self._index.find_any(reference)
            asked = [self._listed_from, *(self._asked.get(key) for key in (reference, known.id if known else ""))]
            now = self._clock()
        return any(moment is not None and moment.follows(stamp, now=now) for moment in asked)

    def note_event(self, reference: str, stamp: int) -> None:
        """Record that an image changed at `stamp`, ns since the epoch, and is due for an inspect."""
        with self._changed:
            self._unseen[reference] = stamp

    def note_seen(self, reference: str, stamp: int) -> None:
        """Record that an image has been inspected after the event at `stamp`."""
        with self._changed:
            if self._unseen.get(reference, stamp) <= stamp:
                self._unseen.pop(reference, None)

    def has_unseen_events(self, image_id: ImageId | None = None) -> bool:
        """Return whether this image, or any image, has changed and awaits its inspect.

        Until then any tag may have moved to another image.
        """
        with self._changed:
            return bool(self._unseen) if image_id is None else image_id in self._unseen

    def _wait_listed_locked(self) -> None:
        self._availability.wait_available()
        self._listed.wait_available()

    # Sync

    def begin_sync(self) -> None:
        """Begin a sync: events arrive from now on, and earlier lists are invalid. The caller holds the lock."""
        self._listed.disconnect(NOT_LISTED)
        self._listed.begin_sync()
        self._unseen.clear()
        # A list in flight may be older than the first event, so it is repeated.
        self._reads.supersede(IMAGES)
        self._reads.supersede(ONE_IMAGE)

    def disconnect(self, reason: str) -> None:
        """Refuse reads while Docker cannot be reached, and end waiting reads. The caller holds the lock."""
        self._listed.disconnect(reason)

    def note_failure(self, error: ShimError) -> None:
        """Record why the images could not be listed. If an earlier list succeeded, its images stay known."""
        with self._changed:
            if self._listed.outage is not None:
                self._listed.disconnect(f"Docker's images are not known, listing them is retried: {error}")

    # Writes after a change

    def refresh(self) -> None:
        """List the images and publish them. Raise the errors of the list; the images then stay as they are.

        Changes of single images while the list is in flight are applied to its answer. The list is repeated if another
        list ends first, or if the connection to Docker is new.
        """
        while True:
            with self._reads.reading(IMAGES, lock=self._changed) as read:
                with self._changed:
                    self._reads.supersede(ONE_IMAGE)
                listed = self._engine.list_images()
                known = self._index
                index = ImageIndex(
                    translate.record_from_image_list(image, known=known.get(ImageId(image.id))) for image in listed
                )
                with self._changed:
                    if not read.superseded:
                        self._publish_list_locked(index, read)
                        return

    def refresh_one(self, reference: str) -> ImageRecord | None:
        """Inspect an image, by its id or any name, and publish it; return None if Docker does not have it.

        Raise the other errors of the inspect; the images then stay as they are. Images that lose a tag to this image
        are inspected as well, because Docker sends no event for them.
        """
        while True:
            with self._reads.reading(ONE_IMAGE, lock=self._changed) as read:
                try:
                    inspect = self._engine.inspect_image(reference)
                except NotFound:
                    return self._note_missing(reference, read)
                record = translate.record_from_image(inspect)
                with self._changed:
                    if self._is_current_locked(record, read):
                        losers = self._publish_locked(record, read.began)
                        break
        for loser in losers:
            self.refresh_one(loser)
        return self.last_known(record.id)

    def lookup(self, reference: str) -> ImageRecord | None:
        """Inspect an image, named in any form, and publish it. Raise InvalidArgument for an invalid reference."""
        if references.image_id(reference) is None:
            canonical = references.canonical(reference)
            # A prefix of an id looks like a name, and only Docker can tell them apart.
            reference = canonical if "@" in reference else reference
        return self.refresh_one(reference)

    @contextmanager
    def names_kept(self, image_id: ImageId) -> Iterator[None]:
        """Let `being_removed` find an image by its former names while Docker removes it inside the block."""
        with self._changed:
            record = self._index.get(image_id)
            if record is not None:
                self._being_removed[image_id] = record
        try:
            yield
        finally:
            with self._changed:
                self._being_removed.pop(image_id, None)

    def being_removed(self, reference: str) -> ImageId | None:
        """Return the id of an image that is being removed and that had this tag or digest; None if there is none."""
        name = references.canonical(reference)
        with self._changed:
            return next((each.id for each in self._being_removed.values() if name in each.names), None)

    @contextmanager
    def removal(self, image_id: ImageId) -> Iterator[None]:
        """Drop an image from the view at the end of the block, inside which Docker removes it.

        If another call has published the image again meanwhile, inspect it instead.
        """
        with self._reads.reading(ONE_IMAGE, lock=self._changed) as read:
            yield
            with self._changed:
                is_certain = not _is_superseded(read, image_id)
                if is_certain:
                    self._forget_locked(image_id, self._clock())
        if not is_certain:
            self.refresh_one(image_id)

    def confirm(self, reference: str, image_id: ImageId, *, since: int) -> ImageRecord | None:
        """Record that Docker had this image under this name at the time `since`, ns by the monotonic clock.

        Return the image; None if the view does not have it under this name, or until all images are known. The name is
        added to the answers of lists that began before `since`. Raise Unavailable while disconnected.
        """
        with self._changed:
            self._availability.wait_available()
            record = None if self._listed.outage else self._index.find(reference)
            if record is None or record.id != image_id:
                return None
            name, offset = references.canonical(reference), self._clock().offset
            self._reads.note_published(ONE_IMAGE, (record.id, name))
            self._reads.apply_update(IMAGES, lambda index: index.add_name(name, record), since=since)
            self._asked[name] = Moment(since + offset, offset)
            return record

    # Internals

    def _is_current_locked(self, record: ImageRecord, read: Read) -> bool:
        """Return whether a record equals the current record, or nothing newer was published since its inspect began."""
        return record == self._index.get(record.id) or not _is_superseded(read, record.id, *record.repo_tags)

    def _note_missing(self, reference: str, read: Read) -> ImageRecord | None:
        """Publish that Docker has no image with this id or name. Return the image if it has reappeared meanwhile."""
        with self._changed:
            known = self._index.find_any(reference)
            if known is None:
                return None
            if known.id == reference and not _is_superseded(read, known.id):
                self._forget_locked(known.id, read.began)
                return None
        self.refresh_one(known.id)  # Docker may still have the image under other names
        return self.last_known(reference)

    def _publish_list_locked(self, index: ImageIndex, read: Read) -> None:
        self._reads.supersede(IMAGES)
        self._reads.supersede(ONE_IMAGE)
        for update in read.updates:
            update(index)
        self._index = index
        self._asked = {key: moment for key, moment in self._asked.items() if moment.wall >= read.began.wall}
        self._listed_from, now = read.began, self._clock()
        self._unseen = {key: stamp for key, stamp in self._unseen.items() if not read.began.follows(stamp, now=now)}
        self._listed.complete_sync(self._listed.begin_sync())

    def _publish_locked(self, record: ImageRecord, asked: Moment) -> list[ImageId]:
        """Publish the record of an image; return the ids of other images that have lost a tag to it."""
        self._reads.note_published(ONE_IMAGE, (record.id, *record.repo_tags))
        self._reads.apply_update(IMAGES, lambda index: index.put(record))
        self._asked[record.id] = asked
        return self._index.put(record)

    def _forget_locked(self, image_id: ImageId, asked: Moment) -> None:
        self._reads.note_published(ONE_IMAGE, (image_id,))
        self._reads.apply_update(IMAGES, lambda index: index.remove(image_id))
        self._asked[image_id] = asked
        self._index.remove(image_id)


def _is_superseded(read: Read, image_id: ImageId, *tags: str) -> bool:
    return read.superseded or not read.published.isdisjoint((image_id, *tags))
