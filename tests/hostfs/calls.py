"""What tests have called in the helper process. It imports little: a call waits for the import of what it calls."""

import os
import signal
import sys
import threading
from pathlib import Path

from shim.hostfs.packets import MAX_PACKET


def pid_of(*_: object) -> int:
    """The process that makes the call."""
    return os.getpid()


def loaded() -> set[str]:
    """The modules of the process that makes the call."""
    return set(sys.modules)


def read(path: Path) -> bytes:
    """The content of a file: of a FIFO that nobody writes to, never."""
    return path.read_bytes()


def count(path: str) -> int:
    """Say how often this was called, by the length of a file."""
    with Path(path).open("a") as file:
        file.write("x")
        return file.tell()


def die_once(path: str) -> int:
    """End the process at the first call; as `count`."""
    called = count(path)
    if called == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return called


def die(path: str) -> None:
    """End the process at each call."""
    count(path)
    os.kill(os.getpid(), signal.SIGKILL)


def fail(failure: Exception) -> None:
    """Raise what was given."""
    raise failure


def unfit(result: str) -> object:
    """What cannot be sent back."""
    return threading.Lock() if result == "lock" else bytes(MAX_PACKET)


class Unfit(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = threading.Lock()


def fail_unfit() -> None:
    """Raise what cannot be sent."""
    raise Unfit("why", "")


class Unreadable(Exception):
    """Can be sent, and not be made again from what was sent."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def fail_unreadable() -> None:
    """Raise what can be sent, and not be read."""
    raise Unreadable("why", "")
