"""What a fuzzer must not leave, or take: threads, descriptors, memory, time."""

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SETTLE_SECONDS = 10.0
"""For threads that are ending."""
WAITS = 12
"""Times the processor's seconds of an input that may pass by the clock: the machine runs others, too."""
RSS_GROWTH = 24 << 20
"""Bytes by which the process may grow from the first third of a run to its end."""


class TooExpensive(AssertionError):
    """An input took more, or left more, than it may."""


@dataclass(frozen=True)
class Held:
    """What the process holds: which ones, since what others leave to the collector goes at any time."""

    threads: frozenset[threading.Thread] = frozenset()
    descriptors: frozenset[tuple[str, str]] = frozenset()
    """Their numbers, and what they are of."""

    @classmethod
    def now(cls) -> "Held":
        """Return what it holds now."""
        return cls(frozenset(threading.enumerate()), frozenset(_descriptors()))

    def without(self, before: "Held") -> "Held":
        """Return what it did not hold before."""
        return Held(self.threads - before.threads, self.descriptors - before.descriptors)


def _descriptors() -> Iterator[tuple[str, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one of the list itself
            yield entry.name, str(entry.readlink())


def rss() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def no_thread_fails() -> Iterator[None]:
    """Check that no thread ends in an exception while the block runs."""
    before = threading.excepthook
    failed: list[threading.ExceptHookArgs] = []
    threading.excepthook = failed.append
    try:
        yield
    finally:
        threading.excepthook = before
    if failed:
        raise AssertionError(f"a thread has failed: {failed[0].exc_value!r}") from failed[0].exc_value


@contextmanager
def nothing_left() -> Iterator[Callable[[], Held]]:
    """Check that the block leaves no thread and no descriptor; yield what counts those that are left."""
    gc.collect()
    before = Held.now()

    def left() -> Held:
        return Held.now().without(before)

    yield left
    until = time.monotonic() + SETTLE_SECONDS
    while left() != Held() and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    if left() != Held():
        raise TooExpensive(f"threads and descriptors left: {left()}")


@contextmanager
def traced() -> Iterator[None]:
    """Trace memory in the block, for many inputs.

    CPython 3.11 never frees the traceback of a line that has allocated (gh-121390): 32 bytes for each line that runs
    between a start of tracemalloc and its stop, 3 KiB for most inputs.
    """
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def costing(*, memory: int | None, seconds: float) -> Iterator[None]:
    """Check what the block takes at most; `memory` is not measured when it is None, which is faster.

    `seconds` are the processor's, of all threads; a block that waits may take WAITS times as long.
    """
    began, worked = time.monotonic(), time.process_time()
    if memory is not None:
        with traced():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                yield
            finally:
                peak = tracemalloc.get_traced_memory()[1] - before
    else:
        peak = 0
        yield
    if memory is not None and peak > memory:
        raise TooExpensive(f"took {peak} bytes of memory, at most {memory} are allowed")
    if (took := time.process_time() - worked) > seconds:
        raise TooExpensive(f"took {took:.1f} s of the processor, at most {seconds:g} s are allowed")
    if (passed := time.monotonic() - began) > WAITS * seconds:
        raise TooExpensive(f"took {passed:.1f} s, at most {WAITS * seconds:g} s are allowed")
