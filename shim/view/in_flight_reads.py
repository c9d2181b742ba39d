"""Which calls that read from Docker are in flight, and which of them have been superseded.

Two inspects of one container that overlap may answer in any order, and nothing in an answer shows which is the newer.
So the one that ends first, or a removal, supersedes every other read of the same object: that one is repeated, not
published. A caller that reads because something has changed thus always sees that change. A list of all images is not
repeated when one of them changes, or steady pulls would never let a slow list end: the change is applied to its answer.
Which image an inspect by name is of shows only in the answer, so such a read notes what has been published meanwhile.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from shim.view.image_index import ImageIndex

_CLOCK_SET_NS = 1_000_000
"""By more than that the two clocks differ only if one was set; read one after the other they differ by far less."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by the clock that Docker stamps its events with, and its offset from the clock that is never set."""

    wall: int
    """Ns since the epoch."""
    offset: int
    """`wall` minus the monotonic clock, ns."""

    def follows(self, stamp: int, *, now: "Moment") -> bool:
        """Whether this is later than Docker's `stamp`; False if the clock was set by more than 1 ms since then."""
        return 0 < stamp < self.wall and abs(self.offset - now.offset) < _CLOCK_SET_NS


def this_moment() -> Moment:
    """Read the clocks."""
    wall = time.time_ns()
    return Moment(wall, wall - time.monotonic_ns())


class Read:
    """One call to Docker that has not been answered yet."""

    __slots__ = ("began", "published", "superseded", "updates")

    def __init__(self, began: Moment) -> None:
        self.began = began
        self.superseded = False
        """Whether something newer has been published since the call began."""
        self.published: set[str] = set()
        """Ids and names of the images that have been published or removed since then."""
        self.updates: list[Callable[[ImageIndex], object]] = []
        """Changes of single images since then, oldest first, to be applied to the answer."""


class InFlightReads:
    """The reads in flight by their key. Guarded by the lock of its owner; empty while nothing is read."""

    def __init__(self, *, clock: Callable[[], Moment] = this_moment) -> None:
        self._clock = clock
        self._reads: defaultdict[str, set[Read]] = defaultdict(set)

    def begin(self, key: str) -> Read:
        """Register a read before Docker is called."""
        read = Read(self._clock())
        self._reads[key].add(read)
        return read

    def end(self, key: str, read: Read) -> None:
        """Remove a read, whether it succeeded or not."""
        reads = self._reads[key]
        reads.discard(read)
        if not reads:
            del self._reads[key]

    @contextmanager
    def reading(self, key: str, *, lock: AbstractContextManager[object]) -> Iterator[Read]:
        """Register a read for the block. `lock` is the owner's; it is not held inside the block."""
        with lock:
            read = self.begin(key)
        try:
            yield read
        finally:
            with lock:
                self.end(key, read)

    def supersede(self, key: str) -> None:
        """Mark the reads of `key` in flight as superseded: a newer state has just been published."""
        for read in self._reads.get(key, ()):
            read.superseded = True

    def note_published(self, key: str, names: Iterable[str]) -> None:
        """Note in the reads of `key` in flight that an image with this id and these names has been published."""
        for read in self._reads.get(key, ()):
            read.published.update(names)

    def apply_update(self, key: str, update: Callable[[ImageIndex], object], *, since: int | None = None) -> None:
        """Have an update applied to the answers of the reads of `key` in flight, which stay valid.

        `since` is when the update was true, ns by the monotonic clock: reads that began later already include it.
        """
        for read in self._reads.get(key, ()):
            if since is None or read.began.wall - read.began.offset <= since:
                read.updates.append(update)

    def __len__(self) -> int:
        return len(self._reads)
