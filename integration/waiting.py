"""Polling for conditions that no event announces, and for commands in containers."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import docker

from integration.node.commands import allowed

T = TypeVar("T")

_TICK_SECONDS = 0.01
_SHARE = 0.05
"""Bound on a pause as a share of the time passed: most conditions call a server, which has to work for its answer."""
_LONGEST_SECONDS = 0.25


def wait_until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the first true value of `condition`; raise AssertionError with its last value after `seconds`."""
    began = time.monotonic()
    while not (value := condition()):
        passed = time.monotonic() - began
        assert passed < allowed(seconds), f"not within {seconds:g} s; the last answer was {value!r}"
        time.sleep(min(max(_TICK_SECONDS, _SHARE * passed), _LONGEST_SECONDS))
    return value


def exit_code(api: docker.APIClient, container: str, command: Sequence[str]) -> int:
    """Run a command in a container through Docker and return its exit code.

    The output is not attached, because the SDK never closes that stream.
    """
    exec_id = api.exec_create(container, list(command))["Id"]
    api.exec_start(exec_id, detach=True)
    wait_until(lambda: api.exec_inspect(exec_id)["ExitCode"] is not None)
    return int(api.exec_inspect(exec_id)["ExitCode"])
