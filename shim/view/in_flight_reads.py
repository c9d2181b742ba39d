"""Tracks the reads from Docker that are in flight, and marks superseded reads.

Two overlapping inspects of a container may answer in any order, and an answer does not show which is newer. So the
inspect that ends first, or a removal, supersedes all other reads of the container. Superseded reads are repeated, not
published. Thus a caller that reads after a change always sees the change.

A change of an image does not supersede a list of all images, because a slow list would never end during steady pulls.
Instead the change is applied to the answer of the list. For an inspect by name, the image is unknown until the answer.
So such a read collects the ids and names of images published meanwhile.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from shim.view.image_index import ImageIndex

_CLOCK_SET_NS = 1_000_000
"""If the offset between the clocks changes by more than this, the wall clock was set."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by the wall clock, which stamps Docker's events, and its offset from the monotonic clock."""

    wall: int
    """Ns since the epoch."""
    offset: int
    """`wall` minus the monotonic clock, ns."""

    def follows(self, stamp: int, *, now: "Moment") -> bool:
        """Return whether this is later than Docker's `stamp`; False if the wall clock was set by over 1 ms since."""
        return 0 < stamp < self.wall and abs(self.offset - now.offset) < _CLOCK_SET_NS


def this_moment() -> Moment:
    """Return the current moment."""
    wall = time.time_ns()
    return Moment(wall, wall - time.monotonic_ns())


class Read:
    """An unanswered call to Docker."""

    __slots__ = ("began", "published", "superseded", "updates")

    def __init__(self, began: Moment) -> None:
        self.began = began
        self.superseded = False
        """Whether a newer state has been published since the call began."""
        self.published: set[str] = set()
        """Ids and names of the images that have been published or removed since the call began."""
        self.updates: list[Callable[[ImageIndex], object]] = []
        """Changes of single images since the call began, oldest first. The answer may lack them."""


class InFlightReads:
    """The reads in flight by key. Callers hold the owner's lock."""

    def __init__(self, *, clock: Callable[[], Moment] = this_moment) -> None:
        self._clock = clock
        self._reads: defaultdict[str, set[Read]] = defaultdict(set)

    def begin(self, key: str) -> Read:
        """Register a read before Docker is called."""
        read = Read(self._clock())
        self._reads[key].add(read)
        return read

    def end(self, key: str, read: Read) -> None:
        """Remove a read that has succeeded or failed."""
        reads = self._reads[key]
        reads.discard(read)
        if not reads:
            del self._reads[key]

    @contextmanager
    def reading(self, key: str, *, lock: AbstractContextManager[object]) -> Iterator[Read]:
        """Register a read for the block. `lock` is the owner's lock; it is not held inside the block."""
        with lock:
            read = self.begin(key)
        try:
            yield read
        finally:
            with lock:
                self.end(key, read)

    def supersede(self, key: str) -> None:
        """Mark the reads of `key` as superseded by a newer state."""
        for read in self._reads.get(key, ()):
            read.superseded = True

    def note_published(self, key: str, names: Iterable[str]) -> None:
        """Record in the reads of `key` that an image with these names, including its id, has been published."""
        for read in self._reads.get(key, ()):
            read.published.update(names)

    def apply_update(self, key: str, update: Callable[[ImageIndex], object], *, since: int | None = None) -> None:
        """Add an update to the reads of `key`, to be applied to their answers.

        `since` is when the update became true, ns by the monotonic clock. Reads that began later already include it.
        """
        for read in self._reads.get(key, ()):
            if since is None or read.began.wall - read.began.offset <= since:
                read.updates.append(update)

    def __len__(self) -> int:
        return len(self._reads)
