"""The images of the node view: listed or inspected one at a time, and never older than what was learned meanwhile.

They are completed beside the containers, and may be unknown while those are known: an image store that is sick or slow
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
"""The key of looks at the image list; those at containers have the container's id, hexadecimal digits."""
ONE_IMAGE = "image"
"""The key of looks at single images. They are repeated for any that ends first, and for a list that begins or ends: so
what comes of them is newer than what a list under way was asked for."""
NOT_LISTED = "docker's images have not been listed yet"
LOOK_UP_SECONDS = 1.0
"""How long `is_listed` waits for a list under way: most lists of a start are complete by then."""


class ImagesUnknown(Unavailable):
    """The containers of this node are known, its images are not; the message says why."""


class ImageView:
    """What images are on this node now. Thread-safe.

    Its questions raise Unavailable as those of the `shim.view.node.NodeView` that it is a part of, and ImagesUnknown
    until all images have been listed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        changed: threading.Condition,
        availability: Availability,
        looks: InFlightReads,
        patience: float,
    ) -> None:
        """`changed` is the lock of the node view, which guards its `availability` and its `looks`.

        `patience` is how many seconds a question waits for the first list of a connection to Docker.
        """
        self._engine = engine
        self._changed = changed
        self._availability = availability
        self._listed = Availability(changed, patience=patience, initially=NOT_LISTED, refusal=ImagesUnknown)
        self._looks = looks
        self._index = ImageIndex(())
        self._details = ImageDetails()
        self._departures: CoalescedRefresh[None] = CoalescedRefresh(self.refresh, what="list images")

    # Questions

    def all(self) -> tuple[ImageRecord, ...]:
        """All images."""
        return self._current().records

    def find(self, reference: str) -> ImageRecord | None:
        """The image of this id, unique beginning of an id, tag or digest, in any form; None when there is none.

        InvalidArgument for what is no reference, and for a beginning that several ids share.
        """
        return self._current().find(reference)

    def last_known(self, reference: str) -> ImageRecord | None:
        """What `find` would give by what is known of images now, be it old or incomplete. Never waits.

        For answers that are about something else and only name an image.
        """
        with self._changed:
            index = self._index
        return index.find(reference)

    def is_listed(self, *, patience: float = LOOK_UP_SECONDS) -> bool:
        """Whether all images are known; waits `patience` seconds for a list under way.

        Unavailable while Docker is out of reach.
        """
        with self._changed:
            self._availability.wait_available()
        return self.wait_listed(patience)

    def wait_listed(self, seconds: float) -> bool:
        """Whether all images are known, after that many seconds at most; whatever is known of containers."""
        with self._changed:
            try:
                self._listed.wait_available(patience=seconds)
            except ImagesUnknown:
                return False
            return True

    def count(self) -> int:
        """How many there are; also answered while Docker is out of reach."""
        with self._changed:
            return len(self._index.records)

    def outage(self) -> str:
        """Why images are not known; empty while they are, whether or not Docker can be reached."""
        with self._changed:
            return self._listed.outage or ""

    def _current(self) -> ImageIndex:
        with self._changed:
            self._availability.wait_available()
            self._listed.wait_available()
            return self._index

    # What the watcher does

    def begin(self) -> None:
        """Say that changes are heard of from now on: what was listed before does not count. The lock is held."""
        self._listed.lose(NOT_LISTED)
        self._listed.begin_rebuild()
        # A list under way may be older than the first event: it is repeated.
        self._looks.overtake(IMAGES)
        self._looks.overtake(ONE_IMAGE)

    def lose(self, reason: str) -> None:
        """Say that Docker is out of reach, so that those who wait for a list leave. The lock is held."""
        self._listed.lose(reason)

    def note_failure(self, error: ShimError) -> None:
        """Say why the images could not be listed. Those that are known stay known."""
        with self._changed:
            if self._listed.outage is not None:
                self._listed.lose(f"docker's images are not known, listing them is repeated: {error}")

    # What RPCs and the watcher do after a change

    def refresh(self) -> None:
        """List the images now, and publish them. Raises what the list does; the images stay as they were then.

        What has been learned of single images since the list was asked for wins over it.
        """
        while True:
            with self._looks.looking(IMAGES, lock=self._changed) as look:
                with self._changed:
                    self._looks.overtake(ONE_IMAGE)
                listed = self._engine.list_images()
                details = self._details.of_listed(self._engine, listed)
                images = ImageIndex(translate.image_record(image, details.get(image.id)) for image in listed)
                with self._changed:
                    if not look.overtaken:
                        self._looks.overtake(IMAGES)
                        self._looks.overtake(ONE_IMAGE)
                        self._index = reduce(lambda index, news: news(index), look.news, images)
                        self._listed.complete(self._listed.begin_rebuild())
                        return

    def ensure_looked_at(self) -> None:
        """Have the images listed once more, after this call; one list serves all who ask before it begins."""
        self._departures.join()

    def refresh_one(self, reference: str) -> ImageRecord | None:
        """Inspect one image now, and publish it: much less than a list of all. None when Docker has none of this name.

        Raises what the inspect does otherwise; the images stay as they were then.
        """
        while True:
            with self._looks.looking(ONE_IMAGE, lock=self._changed) as look:
                try:
                    seen = self._engine.inspect_image(reference)
                except NotFound:
                    return None
                record = translate.image_record(seen, seen)
                with self._changed:
                    if not look.overtaken:
                        self._looks.overtake(ONE_IMAGE)
                        self._looks.tell(IMAGES, partial(ImageIndex.with_record, record=record))
                        self._index = self._index.with_record(record)
                        return record

    def look_up(self, reference: str) -> ImageRecord | None:
        """Find one image by asking Docker about it alone, for the time in which not all of them are known.

        InvalidArgument for what is no reference.
        """
        ImageIndex(()).find(reference)
        return self.refresh_one(reference)

    def forget(self, image_id: ImageId) -> None:
        """Say that an image has been removed, where the images cannot be listed."""
        with self._changed:
            self._looks.overtake(ONE_IMAGE)
            self._looks.tell(IMAGES, partial(ImageIndex.without, image_id=image_id))
            self._index = self._index.without(image_id)

    def confirm(self, reference: str, image_id: ImageId, *, since: int) -> ImageRecord | None:
        """Say that Docker had this image under this name, and when (`since`, ns by the monotonic clock).

        Gives its record if the view has it under the name, too; None also while not all images are known. Lists that
        began before then show it, too: Docker may have answered them before it had it. Unavailable while Docker is out
        of reach.
        """
        with self._changed:
            self._availability.wait_available()
            record = None if self._listed.outage else self._index.find(reference)
            if record is None or record.id != image_id:
                return None
            self._looks.overtake(ONE_IMAGE)
            news = partial(ImageIndex.with_name, reference=reference, record=record)
            self._looks.tell(IMAGES, news, since=since)
            return record
