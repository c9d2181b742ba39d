"""Which looks at Docker are under way, and which of them came too late.

Two inspects of one container that overlap may answer in any order, and nothing in an answer tells which is the newer.
So one that ends first, or a removal, makes every other look at the same thing worthless: it is repeated, not
published. Whoever looked because something had changed thus always sees that change. A list of all images is not
repeated for what is learned of one of them meanwhile, or steady pulls would never let a slow one end.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from shim.view.image_index import ImageIndex

_STEP = 1_000_000
"""Ns by which the two clocks differ when somebody sets one; read one after the other they do by far less."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by the clock that Docker stamps its events with, and how far that was from one that nobody sets."""

    wall: int
    """Ns since the epoch."""
    offset: int
    """`wall` minus the monotonic clock, ns."""

    def follows(self, stamp: int, *, now: "Moment") -> bool:
        """Whether this was after what Docker stamped so; no where the clock was set by more than 1 ms in between."""
        return 0 < stamp < self.wall and abs(self.offset - now.offset) < _STEP


def this_moment() -> Moment:
    """Read the clocks."""
    wall = time.time_ns()
    return Moment(wall, wall - time.monotonic_ns())


class Look:
    """One question to Docker that has not been answered."""

    __slots__ = ("began", "news", "overtaken")

    def __init__(self, began: Moment) -> None:
        self.began = began
        self.overtaken = False
        """Whether something newer has been published since the question was asked."""
        self.news: list[Callable[[ImageIndex], ImageIndex]] = []
        """What has been learned of single images since then, oldest first, to be put into the answer."""


class InFlightReads:
    """The looks under way, by what they look at. Guarded by the lock of its owner; empty while nobody looks."""

    def __init__(self, *, clock: Callable[[], Moment] = this_moment) -> None:
        self._clock = clock
        self._under_way: defaultdict[str, set[Look]] = defaultdict(set)

    def begin(self, key: str) -> Look:
        """Register a look before Docker is asked."""
        look = Look(self._clock())
        self._under_way[key].add(look)
        return look

    def end(self, key: str, look: Look) -> None:
        """Forget a look, however it went."""
        looks = self._under_way[key]
        looks.discard(look)
        if not looks:
            del self._under_way[key]

    @contextmanager
    def looking(self, key: str, *, lock: AbstractContextManager[object]) -> Iterator[Look]:
        """Keep a look registered for the block. `lock` is the owner's: taken here, and not held inside the block."""
        with lock:
            look = self.begin(key)
        try:
            yield look
        finally:
            with lock:
                self.end(key, look)

    def overtake(self, key: str) -> None:
        """Say that the truth about `key` was published just now: looks under way are worthless."""
        for look in self._under_way.get(key, ()):
            look.overtaken = True

    def tell(self, key: str, news: Callable[[ImageIndex], ImageIndex], *, since: int | None = None) -> None:
        """Say what part of the truth about `key` is now: looks under way stay good, with this put into them.

        `since` is when it was true, ns by the monotonic clock: what began later knows better.
        """
        for look in self._under_way.get(key, ()):
            if since is None or look.began.wall - look.began.offset <= since:
                look.news.append(news)

    def __len__(self) -> int:
        return len(self._under_way)
