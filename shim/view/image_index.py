"""Indexes the images of the node by id, tag, digest and id prefix."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from shim.domain import references
from shim.domain.errors import InvalidArgument
from shim.domain.ids import ImageId, match_id
from shim.view.records import ImageRecord


class ImageIndex:
    """Images by id and by name. The cost of a change does not depend on the number of images.

    As in Docker's list, an unnamed image is hidden if other images were built from it.
    """

    __slots__ = ("_by_id", "_by_name", "_children", "_records")

    def __init__(self, records: Iterable[ImageRecord]) -> None:
        """Merge the names of records with the same id."""
        self._by_id: dict[ImageId, ImageRecord] = {}
        self._by_name: dict[str, ImageRecord] = {}
        self._children: Counter[ImageId] = Counter()
        """The number of images that were built from each image."""
        self._records: tuple[ImageRecord, ...] | None = None
        for record in records:
            known = self._by_id.get(record.id)
            self.put(record if known is None else _with_names(known, record))

    @property
    def records(self) -> tuple[ImageRecord, ...]:
        """All images that are not hidden."""
        if self._records is None:
            self._records = tuple(record for record in self._by_id.values() if self._is_listed(record))
        return self._records

    def find(self, reference: str) -> ImageRecord | None:
        """Find an image by id, tag, digest or id prefix; None if there is none.

        A name wins over an equal id prefix, as in Docker. Raise InvalidArgument for an invalid reference and for an
        ambiguous prefix.
        """
        record = self.find_any(reference)
        return record if record is not None and self._is_listed(record) else None

    def find_any(self, reference: str) -> ImageRecord | None:
        """Find an image as `find` does, including hidden images."""
        whole = references.image_id(reference)
        if whole is not None:
            return self._by_id.get(whole)
        named = self._by_name.get(references.canonical(reference))
        if named is not None:
            return named
        prefix = references.image_id_prefix(reference)
        only = None if prefix is None else match_id(prefix, self._by_id, field="image id")
        return None if only is None else self._by_id[ImageId(only)]

    def get(self, image_id: ImageId) -> ImageRecord | None:
        """Return the image with this id, even if hidden."""
        return self._by_id.get(image_id)

    def put(self, record: ImageRecord) -> list[ImageId]:
        """Store the record of an image. Return the ids of other images that have lost a tag to it."""
        self.remove(record.id)
        losers = self._take_tags_from_others(record)
        self._by_id[record.id] = record
        self._by_name |= dict.fromkeys(record.names, record)
        if record.parent:
            self._children[record.parent] += 1
        self._records = None
        return losers

    def remove(self, image_id: ImageId) -> None:
        """Drop an image. Idempotent."""
        record = self._by_id.pop(image_id, None)
        if record is None:
            return
        for name in record.names:
            if self._by_name.get(name) is record:
                del self._by_name[name]
        if record.parent:
            self._children[record.parent] -= 1
        self._records = None

    def add_name(self, reference: str, record: ImageRecord) -> None:
        """Give the image of `record` the name `reference`, and take the name from any other image.

        If the index already has the image, its other data stays, because it is newer than `record`.
        """
        part = _only_as(record, references.canonical(reference))
        known = self._by_id.get(record.id)
        self.put(part if known is None else _with_names(known, part))

    def _is_listed(self, record: ImageRecord) -> bool:
        return bool(record.names) or not self._children[record.id]

    def _take_tags_from_others(self, record: ImageRecord) -> list[ImageId]:
        losers = []
        for tag in record.repo_tags:
            other = self._by_name.get(tag)
            if other is not None:
                self.put(replace(other, repo_tags=tuple(it for it in other.repo_tags if it != tag)))
                losers.append(other.id)
        return losers


def name_for_people(record: ImageRecord, *, wanted: str) -> str:
    """Return `wanted` if it names this image, else the image's first name, else its id."""
    names = record.names
    if wanted in names:
        return wanted
    with suppress(InvalidArgument):
        if references.canonical(wanted) in names:
            return references.canonical(wanted)
    return names[0] if names else record.id


def _only_as(record: ImageRecord, name: str) -> ImageRecord:
    """Return the record with this tag only, and with the digests in its repository."""
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
