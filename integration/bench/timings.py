"""Times of the calls of a round."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Timings:
    """The timings of a round on one side; `took` holds milliseconds by the name of the call, in order."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block; a block that raises is not recorded."""
        began = time.perf_counter_ns()
        yield
        self.took.setdefault(name, []).append((time.perf_counter_ns() - began) / 1e6)

    def call(self, name: str, action: Callable[[], T]) -> T:
        """Time one call and return its result."""
        with self.timed(name):
            return action()
