"""The images of a `FakeEngine`, and the registry it pulls from."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from shim.domain.errors import FailedPrecondition, NotFound
from shim.engine.answers import Actor, Event, ImageInspect, ImageSettings, ImageSummary, PullProgress
from shim.engine.interface import RegistryAuth
from tests.fakes.engine_files import FakeFile
from tests.fakes.engine_orders import Orders
from tests.fakes.engine_state import FakeContainer, FakeImage, familiar, hex_id


class FakeImages(Orders):
    """The images part of a `FakeEngine`."""

    def __init__(self) -> None:
        super().__init__()
        self.containers: dict[str, FakeContainer] = {}
        self.images: list[FakeImage] = []
        self.registry: dict[str, FakeImage] = {}
        """Images that can be pulled, by tag and by digest."""
        self.pull_auths: list[RegistryAuth | None] = []
        """The credentials of each pull."""
        self._events: list[Event] = []
        self._clock = 0

    def add_image(
        self,
        reference: str,
        settings: ImageSettings | None = None,
        *,
        size: int = 1000,
        files: Mapping[str, FakeFile | bytes] | None = None,
    ) -> str:
        """Add a local image, and return its id. `files` are by absolute path; bytes make a regular file."""
        made = self._made_image(reference, settings, size=size)
        for path, file in (files or {}).items():
            made.files[path] = FakeFile(content=file) if isinstance(file, bytes) else file
        with self._changed:
            return self._add_image(made)

    def publish_image(self, reference: str, settings: ImageSettings | None = None, *, size: int = 1000) -> str:
        """Add an image to the registry, and return its future id."""
        with self._changed:
            image = self._made_image(reference, settings, size=size)
            self.registry |= {familiar(reference): image} | dict.fromkeys(image.digests, image)
            return image.id

    def list_images(self) -> list[ImageSummary]:
        with self._entered("list_images"):
            return [image.summary() for image in self.images if image.tags + image.digests or not self._children(image)]

    def inspect_image(self, reference: str) -> ImageInspect:
        with self._entered("inspect_image", reference):
            return self._find_image(reference, what="inspect image").inspect()

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        self.pull_auths.append(auth)
        progress(PullProgress(status=f"Pulling from {reference}"))
        with self._entered("pull_image", reference):
            if (image := self.registry.get(familiar(reference))) is None:
                raise NotFound(f"pull image {reference}: manifest unknown")
            self._add_image(image)
        progress(PullProgress(status=f"Digest: {image.digests[0].partition('@')[2]}"))
        progress(PullProgress(status=f"Status: Downloaded newer image for {reference}"))

    def remove_image(self, reference: str) -> None:
        with self._entered("remove_image", reference):
            image, name = self._find_image(reference, what="remove image"), familiar(reference)
            by_name = name in image.tags + image.digests
            if by_name and len(image.tags) > 1:
                self._untag(image, name)
                return
            self._check_removable(image, reference, by_name=by_name)
            image.tags, image.digests = [], []
            self._emit("image", "untag", image.id, {})
            if not self._children(image):
                self.images.remove(image)
                self._emit("image", "delete", image.id, {})

    def _check_removable(self, image: FakeImage, reference: str, *, by_name: bool) -> None:
        """Refuse removals that Docker refuses without force."""
        what = f"remove image {reference}: conflict: unable to delete"
        if not by_name and self._children(image):
            raise FailedPrecondition(f"{what} (cannot be forced) - image has dependent child images")
        if not by_name and len(image.tags) > 1:
            raise FailedPrecondition(f"{what} (must be forced) - image is referenced in multiple repositories")
        if users := [it for it in self.containers.values() if it.image is image]:
            raise FailedPrecondition(f"{what} (must be forced) - image is being used by container {users[0].id[:12]}")

    def _children(self, image: FakeImage) -> list[FakeImage]:
        return [other for other in self.images if other.parent == image.id]

    def _made_image(self, reference: str, settings: ImageSettings | None, *, size: int) -> FakeImage:
        name = familiar(reference)
        repository = name.partition("@")[0].rpartition(":")[0]
        return FakeImage(
            id=f"sha256:{hex_id(f'{name} {settings} {size}')}",
            tags=[name],
            digests=[f"{repository}@sha256:{hex_id(f'manifest of {name} {settings} {size}')}"],
            settings=settings or ImageSettings(cmd=["sh"]),
            size=size,
        )

    def _add_image(self, image: FakeImage) -> str:
        known = next((it for it in self.images if it.id == image.id), None)
        for other in self.images:
            other.tags = [tag for tag in other.tags if tag not in image.tags]
        if known is None:
            known = replace(image, tags=[], digests=[])
            self.images.append(known)
        known.tags, known.digests = image.tags[:], image.digests[:]
        self._emit("image", "pull", image.tags[0], {})
        return image.id

    def _find_image(self, reference: str, *, what: str) -> FakeImage:
        for image in self.images:
            if image.is_called(reference):
                return image
        raise NotFound(f"{what} {reference}: no such image")

    def _untag(self, image: FakeImage, name: str) -> None:
        """Remove a name; the digests of a repository go with its last tag."""
        image.tags = [tag for tag in image.tags if tag != name]
        kept = {tag.rpartition(":")[0] for tag in image.tags}
        image.digests = [digest for digest in image.digests if digest != name and digest.partition("@")[0] in kept]
        self._emit("image", "untag", image.id, {})

    def _now(self) -> int:
        """Return a time later than all before."""
        self._clock = max(self._clock + 1, time.time_ns())
        return self._clock

    def _emit(self, kind: str, action: str, actor_id: str, attributes: Mapping[str, str]) -> None:
        actor = Actor(id=actor_id, attributes=dict(attributes))
        self._events.append(Event(type=kind, action=action, actor=actor, time_nano=self._now()))
        self._changed.notify_all()
