"""A server whose settings are wrong: it says so to its clients, and starts anew once they are corrected."""

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
"""Without a change, after which files are taken to be complete: they appear empty where an editor makes them anew."""

log = structlog.get_logger(__name__)


def refuse_until_corrected(
    error: ShimError | None,
    *,
    files: Callable[[], Iterable[Path]],
    check: Callable[[], ShimError | None],
    environ: Mapping[str, str],
) -> NoReturn:
    """Answer clients of the socket that systemd has passed with the error, until `files` change; then start anew.

    `check` finds what is wrong with settings, None where nothing is or only a start can tell; it is asked for the error
    where there is none. `environ` is the environment of the start. FailedPrecondition where that cannot be done.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # nothing is under way
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
        # The process stays the same, so systemd's socket is still its own, and systemd counts no start. Clients see
        # their connections end, which is UNAVAILABLE; a server that stops would tell some CANCELLED.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(environ))  # noqa: S606
