"""The watchdog: notifies systemd while the server works (`WatchdogSec=`, sd_notify(3)).

It checks what a restart can repair: a client gets an answer to an RPC on the socket, and the node view's lock is free.
A sick Docker is no reason to restart: the answer is then an error, but it arrives.
"""

import threading
import time
from collections.abc import Callable

import structlog

from shim.cri import probe
from shim.cri.server import CriServer
from shim.domain.errors import ShimError
from shim.view.node_view import NodeView

_PARTS = 4
"""Checks per WatchdogSec. Each may take one such share, so that a failure is logged and the state dumped before systemd
kills the server."""

log = structlog.get_logger(__name__)


class Watchdog:
    """Checks the server in one thread; a second thread reports a check that hangs."""

    def __init__(
        self,
        *,
        seconds: float,
        check: Callable[[float], None],
        passed: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        """Notify systemd through `passed` after each successful check.

        systemd restarts the server `seconds` after the last notification.

        `check` receives the seconds it may take, and raises ShimError if the server does not work. `failed` is called
        once per series of failures.
        """
        self._interval = seconds / _PARTS
        self._check = check
        self._passed = passed
        self._failed = failed
        self._changed = threading.Condition()
        self._stopping = False
        self._overdue_at: float | None = None
        """When the running check is overdue; None without a check, or once that is reported."""
        self._is_failing = False
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("watchdog", self._check_all), ("watchdog-bound", self._report_overdue))
        ]

    def start(self) -> None:
        """Start the threads, with a first check at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads. A check that hangs is abandoned."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self._interval)

    def _check_all(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            self._set_overdue(began + self._interval)
            failure = self._failure()
            self._set_overdue(None)
            if failure:
                self._report(failure)
            else:
                self._is_failing = False
                self._passed()
            self._wait(began + self._interval)

    def _failure(self) -> str:
        """Return why the check failed; empty if it passed."""
        try:
            self._check(self._interval)
        except ShimError as error:
            return str(error)
        except Exception as error:
            log.exception("watchdog failed")
            return repr(error)
        return ""

    def _report_overdue(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._is_overdue(), self._until_overdue())
                if self._stopping:
                    return
                overdue = self._is_overdue()
                if overdue:
                    self._overdue_at = None
            if overdue:
                self._report(f"the check has not ended within {self._interval:g} s")

    def _report(self, failure: str) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        log.error("server does not work, systemd will restart it", error=failure)
        self._failed()

    def _set_overdue(self, at: float | None) -> None:
        with self._changed:
            self._overdue_at = at
            self._changed.notify_all()

    def _is_overdue(self) -> bool:
        return self._overdue_at is not None and time.monotonic() >= self._overdue_at

    def _until_overdue(self) -> float:
        return self._interval if self._overdue_at is None else max(0.0, self._overdue_at - time.monotonic())

    def _wait(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, max(0.0, until - time.monotonic()))


def check_server(seconds: float, *, server: CriServer, view: NodeView) -> None:
    """Check that the view's lock is free and that a client on the socket gets an answer within `seconds`.

    Raise DeadlineExceeded, or the reason why no client can connect.
    """
    view.stats()
    probe.check_answers(server.address, seconds=seconds)
