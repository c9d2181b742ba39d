"""The images of the node by id, tag, digest and id prefix."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from shim.base import deadline
from shim.base.gather import gather
from shim.domain import references
from shim.domain.errors import InvalidArgument, NotFound, ShimError, Unavailable
from shim.domain.ids import ImageId, only_id
from shim.engine.answers import ImageInspect, ImageSummary
from shim.engine.hanging import answered_within
from shim.engine.interface import Engine
from shim.view.records import ImageRecord

INSPECT_SECONDS = 10.0
"""Bound on the inspect of one image."""

log = structlog.get_logger(__name__)


class ImageIndex:
    """Images by id and by name. Immutable; a change makes a new index."""

    __slots__ = ("_by_id", "_by_name", "records")

    def __init__(self, records: Iterable[ImageRecord]) -> None:
        """Merge the names of records with the same id."""
        self._by_id: dict[ImageId, ImageRecord] = {}
        for record in records:
            known = self._by_id.get(record.id)
            self._by_id[record.id] = record if known is None else _with_names(known, record)
        self.records = tuple(self._by_id.values())
        self._by_name = {name: record for record in self.records for name in (*record.repo_tags, *record.repo_digests)}

    def find(self, reference: str) -> ImageRecord | None:
        """Find an image by id, tag, digest or id prefix; None if there is none.

        A name wins over an equal id prefix, as in Docker. Raise InvalidArgument for what is no reference, and for a
        prefix that several images share.
        """
        whole = references.image_id(reference)
        if whole is not None:
            return self._by_id.get(whole)
        named = self._by_name.get(references.canonical(reference))
        if named is not None:
            return named
        prefix = references.image_id_prefix(reference)
        only = None if prefix is None else only_id(prefix, self._by_id, field="image id")
        return None if only is None else self._by_id[ImageId(only)]

    def with_record(self, record: ImageRecord) -> "ImageIndex":
        """Return an index with this record of an image, whose tags are removed from all others."""
        others = (_without_tags(other, record.repo_tags) for other in self.records if other.id != record.id)
        return ImageIndex([*others, record])

    def without(self, image_id: ImageId) -> "ImageIndex":
        """Return an index without this image."""
        return ImageIndex(record for record in self.records if record.id != image_id)

    def with_name(self, reference: str, record: ImageRecord) -> "ImageIndex":
        """Return an index with this name, one of `record`'s, as a name of that image and of no other.

        Everything else in the index is newer than `record`, if the index has the image.
        """
        part = _only_as(record, references.canonical(reference))
        known = self._by_id.get(record.id)
        return self.with_record(part if known is None else _with_names(known, part))


def name_for_people(record: ImageRecord, *, wanted: str) -> str:
    """Return `wanted` if that is a name of this image, else its first name, else its id."""
    names = (*record.repo_tags, *record.repo_digests)
    if wanted in names:
        return wanted
    with suppress(InvalidArgument):
        if references.canonical(wanted) in names:
            return references.canonical(wanted)
    return names[0] if names else record.id


def _without_tags(record: ImageRecord, tags: Sequence[str]) -> ImageRecord:
    if set(record.repo_tags).isdisjoint(tags):
        return record
    return replace(record, repo_tags=tuple(tag for tag in record.repo_tags if tag not in tags))


def _only_as(record: ImageRecord, name: str) -> ImageRecord:
    """Return the record with only this tag and the digests in its repository."""
    repository = references.parse(name).name
    return replace(
        record,
        repo_tags=tuple(tag for tag in record.repo_tags if tag == name),
        repo_digests=tuple(digest for digest in record.repo_digests if references.parse(digest).name == repository),
    )


def _with_names(record: ImageRecord, other: ImageRecord) -> ImageRecord:
    tags = dict.fromkeys((*record.repo_tags, *other.repo_tags))
    digests = dict.fromkeys((*record.repo_digests, *other.repo_digests))
    return replace(record, repo_tags=tuple(tags), repo_digests=tuple(digests))


class ImageDetails:
    """The inspects of images: one for each image, and another when its names have changed.

    Several threads may use it at the same time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[ImageSummary, ImageInspect]] = {}
        self._problems: dict[str, str] = {}
        """Why an image could not be inspected, as it was logged, by id."""

    def of_listed(self, engine: Engine, listed: Sequence[ImageSummary]) -> dict[str, ImageInspect]:
        """Return the inspects of the listed images by id, without those of images that cannot be inspected.

        Each inspect is kept as soon as it has succeeded. So if this raises, because Docker cannot be reached or the
        time is over, the next call only inspects the rest.
        """
        known = self._known
        current = {image.id: known[image.id] for image in listed if image.id in known and known[image.id][0] == image}
        missing = [image for image in listed if image.id not in current]
        for image, detail in zip(missing, gather([partial(self._inspect, engine, it) for it in missing]), strict=True):
            if detail is not None:
                current[image.id] = image, detail
        self._known = current
        self._problems = {image.id: self._problems[image.id] for image in listed if image.id in self._problems}
        return {image_id: detail for image_id, (_, detail) in current.items()}

    def _inspect(self, engine: Engine, image: ImageSummary) -> ImageInspect | None:
        """Inspect an image and keep the result. None if it is gone, or if Docker cannot inspect it."""
        what = f"inspect image {image.id}"
        try:
            with answered_within(INSPECT_SECONDS, what=what):
                detail = engine.inspect_image(image.id)
        except NotFound:
            return None
        except Unavailable:
            raise
        except ShimError as error:
            deadline.current().check(what)
            self._log_problem(image.id, str(error))
            return None
        self._known[image.id] = image, detail
        self._problems.pop(image.id, None)
        return detail

    def _log_problem(self, image_id: str, problem: str) -> None:
        if self._problems.get(image_id) != problem:
            log.warning("failed to inspect image, listed without its user", image=image_id, error=problem)
        self._problems[image_id] = problem
