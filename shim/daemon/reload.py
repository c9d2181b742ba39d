"""What a server that runs takes over of changed settings: the level of its log. SIGHUP has it read them."""

import threading
from collections.abc import Callable

import msgspec
import structlog

from shim.base import log as base_log
from shim.base import meter
from shim.base.meter import Kind, Measurement
from shim.config.model import Config
from shim.domain.errors import ShimError

Reread = Callable[[], Config]
"""Reads the settings as the start did: flags, environment and files. Raise ShimError for wrong settings."""

_IN_FORCE = "log_level"

log = structlog.get_logger(__name__)


class Reload:
    """Applies the level of the log."""

    def __init__(self, config: Config, *, reread: Reread) -> None:
        """Apply what `config` says about the log."""
        self._config = config
        self._reread = reread
        self._calls = _LoggedCalls()
        self._lock = threading.Lock()
        self._calls.log(wanted=config.log_level == "debug")

    def begin(self) -> None:
        """Start to read the settings again, in a thread: a file on a dead volume must not block other signals.

        Log the level that is in force then, and the settings that need a restart.
        """
        try:
            threading.Thread(target=self._run, name="reload", daemon=True).start()
        except RuntimeError as error:  # no thread can be started; the caller must go on to handle signals
            log.error("settings not reread", error=str(error))

    def _run(self) -> None:
        with self._lock:
            self._reread_settings()

    def _reread_settings(self) -> None:
        try:
            config = self._reread()
        except ShimError as error:
            log.error("settings not reread", error=str(error))
            return
        names = [name for name in Config.__struct_fields__ if getattr(config, name) != getattr(self._config, name)]
        if _IN_FORCE in names:
            base_log.configure(level=config.log_level, style=self._config.log_format)
            self._calls.log(wanted=config.log_level == "debug")
            self._config = msgspec.structs.replace(self._config, log_level=config.log_level)
        need_restart = [name for name in names if name != _IN_FORCE]
        if need_restart:
            log.warning("changed settings need a restart", settings=need_restart)
        log.info("settings reread", log_level=config.log_level)

    def close(self) -> None:
        """Log no calls any more."""
        self._calls.log(wanted=False)


class _LoggedCalls:
    """Logs each call to Docker and each run of a CNI plugin, while that is wanted."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None

    def log(self, *, wanted: bool) -> None:
        if wanted and self._stop is None:
            self._stop = meter.subscribe(_log_call)
        elif not wanted and self._stop is not None:
            self._stop()
            self._stop = None


def _log_call(sample: Measurement) -> None:
    labels = dict(zip(sample.kind.value, sample.labels, strict=True))
    took = round(sample.seconds * 1000, 1)
    if sample.kind is Kind.DOCKER:
        log.debug("docker call", **labels, ms=took)
    elif sample.kind is Kind.CNI:
        log.debug("CNI plugin run", **labels, ms=took)
