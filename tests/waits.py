"""Waits for other threads, with a timeout."""

import threading
from collections.abc import Callable

from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.view.records import Change

SECONDS = 20.0
_TICK = 0.002


def wait_change(changes: Subscription[Change]) -> Change:
    """Return the next change."""
    with deadline.bound(SECONDS):
        return changes.wait_next()


def wait_until(true: Callable[[], object]) -> None:
    """Poll until `true` returns a true value, for conditions without an event."""
    never = threading.Event()
    for _ in range(int(SECONDS / _TICK)):
        if true():
            return
        never.wait(_TICK)
    raise AssertionError("what the test waits for has not happened")
