"""Waiting for what nothing announces."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TICK_SECONDS = 0.01
_SLOWNESS = float(os.environ.get("PYDOCKERSHIM_SLOWNESS", "1"))
"""How many times as long things may take, for machines that are emulated."""


def wait_until(condition: Callable[[], T], seconds: float = 15.0) -> T:
    """Return the first true value of `condition`; AssertionError with its last value after `seconds`."""
    deadline = time.monotonic() + seconds * _SLOWNESS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s; the last answer was {value!r}"
        time.sleep(_TICK_SECONDS)
    return value
