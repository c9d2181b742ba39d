"""Checks of the resources that an input uses or leaves: threads, descriptors, memory, time."""

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
"""Time for threads to end."""
WAITS = 12
"""Wall-clock bound of an input as a multiple of its CPU bound: the machine runs other processes too."""
RSS_GROWTH = 24 << 20
"""Bytes by which the process may grow from the first third of a run to its end."""


class TooExpensive(AssertionError):
    """An input used or left more than its bound."""


@dataclass(frozen=True)
class Held:
    """Threads and descriptors of the process, by identity: objects of earlier code may be collected at any time."""

    threads: frozenset[threading.Thread] = frozenset()
    descriptors: frozenset[tuple[str, str]] = frozenset()
    """Descriptor numbers and their targets."""

    @classmethod
    def now(cls) -> "Held":
        """Return the present threads and descriptors."""
        return cls(frozenset(threading.enumerate()), frozenset(_descriptors()))

    def without(self, before: "Held") -> "Held":
        """Return the threads and descriptors that are new since `before`."""
        return Held(self.threads - before.threads, self.descriptors - before.descriptors)


def _descriptors() -> Iterator[tuple[str, str]]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing
            yield entry.name, str(entry.readlink())


def rss() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def no_thread_fails() -> Iterator[None]:
    """Check that no thread ends with an exception while the block runs."""
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
    """Check that the block leaves no thread and no descriptor; yields a function that returns the leftovers."""
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
    """Check the resources that the block uses; with `memory` None memory is not measured, which is faster.

    `seconds` bounds the CPU time of all threads; by the clock the block may take WAITS times as long.
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
