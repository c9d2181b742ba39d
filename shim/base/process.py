"""Processes by pidfd (pidfd_open(2)): a handle means one process, also when its number has become another's."""

import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from shim.base import deadline
from shim.base.wakeup import Waker
from shim.domain.errors import ResourceExhausted, reason_of


class ProcessHandle:
    """One process, for polls and signals. As a context manager it closes."""

    __slots__ = ("_fd", "pid")

    def __init__(self, pid: int) -> None:
        """Open it. ProcessLookupError where there is no such process, OSError where no descriptor is free."""
        self._fd = os.pidfd_open(pid)
        self.pid = pid

    def fileno(self) -> int:
        """Return the descriptor, which is readable once the process has ended."""
        return self._fd

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.ends_within(0.0)

    def ends_within(self, seconds: float) -> bool:
        """Wait, and return whether the process ends, in `seconds` or in what the current scope leaves of them."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll((deadline.current().remaining(seconds) or 0.0) * 1000))

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def kill_group(self) -> None:
        """Kill the process, and its group if it leads one, unless it has ended."""
        with suppress(ProcessLookupError):
            # Stopped, it cannot end by itself and leave its number to another group.
            signal.pidfd_send_signal(self._fd, signal.SIGSTOP)
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def open_process(pid: int, *, what: str) -> Iterator[ProcessHandle | None]:
    """Yield a handle of a process, None once it is gone. ResourceExhausted, which names `what`: no descriptor is free.

    A process that is no child may end, and its number become another's, before the handle is there. So what was known
    of it must be checked again before it is acted on.
    """
    try:
        process = ProcessHandle(pid)
    except ProcessLookupError:
        yield None
        return
    except OSError as error:
        raise ResourceExhausted(f"{what}: open process {pid}: {reason_of(error)}") from error
    with process:
        yield process


def wait_all_ended(processes: Collection[ProcessHandle], *, what: str, limit: float | None = None) -> bool:
    """Wait until all processes have ended, at most `limit` seconds; return whether they have.

    Raise Cancelled or DeadlineExceeded, which name `what`, when the current scope ends, and ResourceExhausted where no
    descriptor is free.
    """
    scope = deadline.current()
    end = None if limit is None else time.monotonic() + limit
    running = {process.fileno() for process in processes}
    with _waker(what) as waker, scope.on_cancel(waker.wake):
        poll = select.poll()
        for descriptor in (*running, waker.fileno()):
            poll.register(descriptor, select.POLLIN)
        while running:
            scope.check(what)
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            left = scope.remaining(left)
            for descriptor, _ in poll.poll(None if left is None else left * 1000):
                poll.unregister(descriptor)
                running.discard(descriptor)
    return not running


def _waker(what: str) -> Waker:
    try:
        return Waker()
    except OSError as error:
        raise ResourceExhausted(f"{what}: {reason_of(error)}") from error
