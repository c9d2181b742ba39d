"""The images of the node view: listed or inspected one at a time, and never older than what was learned meanwhile."""

import threading
from functools import partial, reduce

from shim.concurrency.flights import Departures
from shim.engine.interface import Engine
from shim.errors import NotFound
from shim.ids import ImageId
from shim.view import translate
from shim.view.availability import Availability
from shim.view.image_index import ImageDetails, ImageIndex
from shim.view.looks import Looks
from shim.view.records import ImageRecord

IMAGES = "images"
"""The key of looks at the image list; those at containers have the container's id, hexadecimal digits."""
ONE_IMAGE = "image"
"""The key of looks at single images. They are repeated for any that ends first, and for a list that begins or ends: so
what comes of them is newer than what a list under way was asked for."""


class ImageView:
    """What images are on this node now. Thread-safe.

    Its questions, and `confirm`, raise Unavailable as those of the `shim.view.node.NodeView` that it is a part of.
    """

    def __init__(
        self, engine: Engine, *, changed: threading.Condition, availability: Availability, looks: Looks
    ) -> None:
        """`changed` is the lock of the node view, which guards its `availability` and its `looks`."""
        self._engine = engine
        self._changed = changed
        self._availability = availability
        self._looks = looks
        self._index = ImageIndex(())
        self._details = ImageDetails()
        self._departures: Departures[None] = Departures(self.refresh, what="list images")

    def all(self) -> tuple[ImageRecord, ...]:
        """All images."""
        with self._changed:
            self._availability.wait_available()
            return self._index.records

    def find(self, reference: str) -> ImageRecord | None:
        """The image of this id, unique beginning of an id, tag or digest, in any form; None when there is none.

        InvalidArgument for what is no reference, and for a beginning that several ids share.
        """
        with self._changed:
            self._availability.wait_available()
            index = self._index
        return index.find(reference)

    def count(self) -> int:
        """How many there are; also answered while Docker is out of reach."""
        with self._changed:
            return len(self._index.records)

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

    def confirm(self, reference: str, image_id: ImageId, *, since: int) -> ImageRecord | None:
        """Say that Docker had this image under this name, and when (`since`, ns by the monotonic clock).

        Gives its record if the view has it under the name, too. Lists that began before then show it, too: Docker may
        have answered them before it had it.
        """
        with self._changed:
            self._availability.wait_available()
            record = self._index.find(reference)
            if record is None or record.id != image_id:
                return None
            self._looks.overtake(ONE_IMAGE)
            news = partial(ImageIndex.with_name, reference=reference, record=record)
            self._looks.tell(IMAGES, news, since=since)
            return record
