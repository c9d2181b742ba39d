"""Waiting for what nothing announces, and for commands in containers."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import docker

from integration.node.commands import allowed

T = TypeVar("T")

_TICK_SECONDS = 0.01
_SHARE = 0.05
"""Of the time that has passed: how long the next pause may be. Most conditions are calls to servers, which have to work
for an answer."""
_LONGEST_SECONDS = 0.25


def wait_until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the first true value of `condition`; AssertionError with its last value after `seconds`."""
    began = time.monotonic()
    while not (value := condition()):
        passed = time.monotonic() - began
        assert passed < allowed(seconds), f"not within {seconds:g} s; the last answer was {value!r}"
        time.sleep(min(max(_TICK_SECONDS, _SHARE * passed), _LONGEST_SECONDS))
    return value


def exit_code(api: docker.APIClient, container: str, command: Sequence[str]) -> int:
    """Run a command in a container through Docker alone. Without its output: the SDK never closes that stream."""
    exec_id = api.exec_create(container, list(command))["Id"]
    api.exec_start(exec_id, detach=True)
    wait_until(lambda: api.exec_inspect(exec_id)["ExitCode"] is not None)
    return int(api.exec_inspect(exec_id)["ExitCode"])
