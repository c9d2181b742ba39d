"""Functions that tests call in the helper process. Imports little: a call waits for this module's import."""

import os
import signal
import sys
import threading
from pathlib import Path

from shim.hostfs.packets import MAX_PACKET


def pid_of(*_: object) -> int:
    """Return the id of the calling process."""
    return os.getpid()


def loaded() -> set[str]:
    """Return the modules of the calling process."""
    return set(sys.modules)


def read(path: Path) -> bytes:
    """Return the content of a file; a FIFO without a writer blocks forever."""
    return path.read_bytes()


def count(path: str) -> int:
    """Return how often this was called, counted by the length of a file."""
    with Path(path).open("a") as file:
        file.write("x")
        return file.tell()


def die_once(path: str) -> int:
    """Kill the process at the first call; otherwise like `count`."""
    called = count(path)
    if called == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return called


def die(path: str) -> None:
    """Kill the process at each call."""
    count(path)
    os.kill(os.getpid(), signal.SIGKILL)


def fail(failure: Exception) -> None:
    """Raise the given exception."""
    raise failure


def unfit(result: str) -> object:
    """Return an unpicklable value."""
    return threading.Lock() if result == "lock" else bytes(MAX_PACKET)


class Unfit(Exception):
    """Cannot be constructed from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = threading.Lock()


def fail_unfit() -> None:
    """Raise an unpicklable exception."""
    raise Unfit("why", "")


class Unreadable(Exception):
    """Can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fail_unreadable() -> None:
    """Raise an exception that can be pickled but not unpickled."""
    raise Unreadable("why", "")
