"""Samples the processes of the node at one moment."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from integration.node.processes import log_process_of, size
from integration.server import Server
from integration.soak.figures import Sample
from integration.waiting import wait_until

_SECONDS = 60.0


def sample(server: Server) -> Sample:
    """Sample the idle server, its log process, and the number of all processes."""
    server.wait_idle()
    log_process = wait_until(lambda: log_process_of(server.daemon.pid) or 0, _SECONDS)
    return Sample(server=size(server.daemon.pid), log_process=size(log_process), processes=_processes())


def settled(server: Server, is_enough: Callable[[Sample], bool]) -> Sample:
    """Sample until `is_enough`, for at most a minute: the last used resources may take time to be released."""
    found = sample(server)

    def again() -> bool:
        nonlocal found
        found = sample(server)
        return is_enough(found)

    with suppress(AssertionError):  # the last sample shows what exceeds its limit
        wait_until(again, _SECONDS)
    return found


def _processes() -> dict[str, int]:
    names: Counter[str] = Counter()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # the process has just ended
            names[path.read_text().strip()] += 1
    return dict(names)
