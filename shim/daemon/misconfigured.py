"""Behaviour if the server cannot start: it reports the error to its clients, and restarts when files change."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from shim.config.watch import FilesWatch
from shim.cri.activation import notify, watchdog_seconds
from shim.cri.refusal import NO_START, WRONG_SETTINGS, refusing
from shim.domain.errors import ShimError

_WRITTEN_SECONDS = 0.3
"""Seconds without a change after which files count as complete: some editors truncate a file before they write it."""

START_AGAIN_SECONDS = 30.0
"""Seconds until the next attempt after a failed start, whose cause may vanish without a change of a file."""

log = structlog.get_logger(__name__)


def refuse_until_corrected(
    error: ShimError | None,
    *,
    files: Callable[[], Iterable[Path]],
    check: Callable[[], ShimError | None],
    environ: Mapping[str, str],
    most: float = math.inf,
) -> NoReturn:
    """Answer clients of systemd's socket with the error until `files` change, or for `most` seconds; then restart.

    `check` returns the error in the settings; None if there is none, or if only a start can find it. It replaces a
    missing `error`. `environ` is the environment of the start. Raise FailedPrecondition if inotify or the socket is not
    available.
    """
    why = WRONG_SETTINGS if most == math.inf else NO_START
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # no request is in flight
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    watchdog = watchdog_seconds(dict(environ))
    with FilesWatch(files) as watch, refusing("") as refusal:
        found = error or check()
        while found is not None:
            refusal.reason = f"{why}: {found}"
            if why == NO_START:
                log.error("cannot start, refusing clients until the next attempt", error=found)
            else:
                log.error("wrong settings, refusing clients until they are corrected", error=found)
            notify(f"READY=1\nSTATUS=Refuses clients, {why}: {found}", environ)
            _wait_changed(watch, most, pulse=None if watchdog is None else watchdog / 2, environ=environ)
            found = check()
        log.info("starting again")
        notify("STATUS=", environ)
        # execve keeps the process, so systemd's socket stays valid and systemd counts no restart. Clients see their
        # connections end, which is UNAVAILABLE; a server that stops would answer some with CANCELLED.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(environ))  # noqa: S606


def _wait_changed(watch: FilesWatch, most: float, *, pulse: float | None, environ: Mapping[str, str]) -> None:
    """Wait until files have changed and are complete, for `most` seconds; notify the watchdog each `pulse` seconds."""
    until = time.monotonic() + most
    while (left := until - time.monotonic()) > 0:
        seconds = min(left, math.inf if pulse is None else pulse)
        if watch.wait_changed(None if seconds == math.inf else seconds):
            break
        notify("WATCHDOG=1", environ)
    while watch.wait_changed(_WRITTEN_SECONDS):
        pass
