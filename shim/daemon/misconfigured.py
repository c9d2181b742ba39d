"""Behaviour with invalid settings: the server reports the error to its clients and restarts when the files change."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from shim.config.watch import FilesWatch
from shim.cri.activation import notify, watchdog_seconds
from shim.cri.refusal import WRONG_SETTINGS, refusing
from shim.domain.errors import ShimError

_WRITTEN_SECONDS = 0.3
"""Seconds without a change after which files count as complete: some editors truncate a file before they write it."""

log = structlog.get_logger(__name__)


def refuse_until_corrected(
    error: ShimError | None,
    *,
    files: Callable[[], Iterable[Path]],
    check: Callable[[], ShimError | None],
    environ: Mapping[str, str],
) -> NoReturn:
    """Answer clients of systemd's socket with the error until `files` change, then restart.

    `check` returns the error in the settings; None if there is none, or if only a start can find it. It replaces a
    missing `error`. `environ` is the environment of the start. Raise FailedPrecondition if inotify or the socket is not
    available.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # no request is in flight
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    watchdog = watchdog_seconds(dict(environ))
    with FilesWatch(files) as watch, refusing("") as refusal:
        found = error or check()
        while found is not None:
            log.error("wrong settings, refusing clients until they are corrected", error=found)
            refusal.reason = f"{WRONG_SETTINGS}: {found}"
            notify(f"READY=1\nSTATUS=Refuses clients until the settings are corrected: {found}", environ)
            while not watch.wait_changed(None if watchdog is None else watchdog / 2):
                notify("WATCHDOG=1", environ)
            while watch.wait_changed(_WRITTEN_SECONDS):
                pass
            found = check()
        log.info("settings were changed, starting again")
        notify("STATUS=", environ)
        # execve keeps the process, so systemd's socket stays valid and systemd counts no restart. Clients see their
        # connections end, which is UNAVAILABLE; a server that stops would answer some with CANCELLED.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(environ))  # noqa: S606
