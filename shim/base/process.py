"""Handles of processes by pidfd (pidfd_open(2)): a handle never refers to another process that reuses the pid."""

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
    """A pidfd, for polls and signals. A context manager that closes it."""

    __slots__ = ("_fd", "pid")

    def __init__(self, pid: int) -> None:
        """Open a pidfd. Raise ProcessLookupError if there is no such process, OSError if no descriptor is free."""
        self._fd = os.pidfd_open(pid)
        self.pid = pid

    def fileno(self) -> int:
        """Return the descriptor. It is readable once the process has ended."""
        return self._fd

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.ends_within(0.0)

    def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds`, bounded by the current scope; return whether the process has ended."""
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
            # A stopped process cannot exit before killpg, so its pid cannot become the id of another group.
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
    """Yield a handle of the process `pid`, or None if it has ended.

    Raise ResourceExhausted, which names `what`, if no descriptor is free. Unless the process is a child, the pid may
    have been reused before the handle was opened, so the caller must check that the handle is the process it means.
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
    """Wait up to `limit` seconds until all processes have ended; return whether they have.

    Raise Cancelled or DeadlineExceeded, which name `what`, when the current scope ends, and ResourceExhausted if no
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
