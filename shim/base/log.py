"""Logging with structlog: one JSON object a line, or coloured lines for a terminal.

Every module uses `structlog.get_logger(__name__)`; `configure` decides where and how lines are written. The gRPC server
binds the request id and the method, which then appear on every line of that request, also from other threads that run
in its context.

Lines for systemd's journal have a priority prefix as in sd-daemon(3), for `journalctl -p`.

Only plain values are written. Of any other object, such as a CRI message, only the type is shown, and values under the
keys SECRETS are masked. So a careless `log.info("pull", auth=request.auth)` leaks nothing.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from os import PathLike
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_PRIORITIES = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}

SECRETS = frozenset(
    {"auth", "authorization", "env", "environment", "envs", "identity_token", "identitytoken", "password"}
    | {"registry_token", "registrytoken", "secret", "token", "x_registry_auth"}
)
"""Keys whose values are never written; compared in lower case, with `-` as `_`."""

MASK = "<redacted>"

NOISY = ("urllib3.connectionpool",)
"""Loggers that warn about normal events, such as a connection pool that grows for a moment."""


def configure(*, level: str, style: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process from `level` on to `stream`, by default standard error.

    `level` is a key of LEVELS. `style` is `json`, `console`, or `auto`: console on a terminal, else json. Colours
    are for terminals only. Warnings and errors of libraries that use `logging` are written in the same way.
    """
    out = stream if stream is not None else sys.stderr
    render = _json_line if style == "json" or (style == "auto" and not out.isatty()) else _console(colors=out.isatty())
    structlog.configure(
        processors=[*_processors(), _prioritized(render) if _is_journal(out) else render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda name="shim", *_: _Lines(name, out),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_Foreign()], force=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


def _processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _with_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _plain_values,
    ]


def _console(*, colors: bool) -> Processor:
    return structlog.dev.ConsoleRenderer(colors=colors)


def _is_journal(out: TextIO) -> bool:
    """Return whether `out` is connected to systemd's journal, which the environment variable JOURNAL_STREAM shows."""
    try:
        found = os.fstat(out.fileno())
    except (OSError, ValueError):  # not a file, or closed
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _prioritized(render: Processor) -> Processor:
    def rendered(logger: WrappedLogger, method: str, event: EventDict) -> str:
        priority = _PRIORITIES[method]
        return priority + str(render(logger, method, event)).replace("\n", f"\n{priority}")

    return rendered


class _Lines:
    """Writes whole lines, so that lines of several threads do not mix."""

    __slots__ = ("_stream", "name")
    _lock = threading.Lock()

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        # If the reader is gone (journald restarts), the operation that logs must not fail.
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


class _Foreign(logging.Handler):
    """Forwards records of the standard `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _with_name(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["logger"] = logger.name
    return event


def _plain_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: _plain(key, value) for key, value in event.items()}


def _plain(key: str, value: object) -> object:
    return MASK if key.lower().replace("-", "_") in SECRETS else _plain_value(value)


def _plain_value(value: object) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            # A file name may not be UTF-8, which must not make the log call fail.
            return value.encode(errors="backslashreplace").decode()
        case BaseException() | PathLike():
            return _plain_value(str(value))
        case Mapping():
            return {str(key): _plain(str(key), inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain_value(inner) for inner in value]
        case _:
            return f"<{type(value).__name__}>"


def _json_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event).decode()
