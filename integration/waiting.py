"""Waiting for what nothing announces."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TICK_SECONDS = 0.01


def wait_until(condition: Callable[[], T], seconds: float = 15.0) -> T:
    """Return the first true value of `condition`; AssertionError with its last value after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s; the last answer was {value!r}"
        time.sleep(_TICK_SECONDS)
    return value
