"""A fake Engine with late answers."""

from collections.abc import Callable

from shim.engine.answers import ContainerInspect, ImageInspect, ImageSummary
from tests.fakes.engine import FakeEngine


class LateEngine(FakeEngine):
    """An Engine with slow answers: the next call in `meanwhile` runs between an answer and its arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []
        self.after_image: list[Callable[[], object]] = []
        """As `meanwhile`, for inspects of images."""
        self.old_answers: list[ContainerInspect] = []

    def inspect_container(self, container_id: str) -> ContainerInspect:
        answer = super().inspect_container(container_id)
        if self.old_answers:
            return self.old_answers.pop()
        self._travel()
        return answer

    def inspect_image(self, reference: str) -> ImageInspect:
        answer = super().inspect_image(reference)
        if self.after_image:
            self.after_image.pop()()
        return answer

    def list_images(self) -> list[ImageSummary]:
        answer = super().list_images()
        self._travel()
        return answer

    def _travel(self) -> None:
        if self.meanwhile:
            self.meanwhile.pop()()
