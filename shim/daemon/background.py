"""Background threads of the server, which end with the block that needs them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shim.base import deadline

_STOP_SECONDS = 1.0
"""Seconds for a thread to end after it was cancelled. The next server repeats unfinished recovery."""


@contextmanager
def background(work: Callable[[threading.Event], object], *, name: str) -> Iterator[None]:
    """Run `work` in a thread until the block ends; then set its event and cancel its deadline scope."""
    stopping, scope = threading.Event(), deadline.Scope()

    def run() -> None:
        with deadline.entered(scope):
            work(stopping)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        scope.cancel()
        thread.join(_STOP_SECONDS)
