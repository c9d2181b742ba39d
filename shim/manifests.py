"""Which image a manifest stands for on this node, as pulls have shown."""

import threading

from shim.ids import ImageId

KEPT = 1000
"""Manifests remembered; a node has some hundred images."""


class Manifests:
    """Images by the digest of their manifest. Thread-safe.

    A digest stands for the same bytes for ever, and they for the same image on a machine that always chooses the same
    platform; names and the images they are of come and go. So nothing here grows old, it is only forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._images: dict[str, ImageId] = {}

    def learn(self, digest: str, image_id: ImageId) -> None:
        """Remember that a pull of the manifest `digest` has brought the image `image_id`."""
        with self._lock:
            self._images.pop(digest, None)
            self._images[digest] = image_id
            if len(self._images) > KEPT:
                del self._images[next(iter(self._images))]

    def image_of(self, digest: str) -> ImageId | None:
        """Give the image a pull of this manifest brings; None when none has been seen."""
        return self._images.get(digest)
