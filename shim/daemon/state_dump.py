"""Writes the server's current state to its log: on SIGUSR1, and when its watchdog finds it stuck.

Each part of the server that can make requests wait is a source of rows with plain values. Stacks are written first, and
each source has a time limit, because a dump must also work while a lock is held forever.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

import structlog

SHOWN_STACKS = 64
"""Distinct stacks that are written, those with most threads first."""
SHOWN_FRAMES = 24
"""Frames of a stack that are written, innermost first."""
SHOWN_NAMES = 8
"""Names of the threads that share a stack."""
SHOWN_ROWS = 64
"""Rows of a source that are written."""
SOURCE_SECONDS = 2.0
"""Seconds for a source to return its rows."""

Row = Mapping[str, object]
Source = Callable[[], Iterable[Row]]

log = structlog.get_logger(__name__)


class StateDump:
    """The sources of a server. Thread-safe."""

    def __init__(self, *, source_seconds: float = SOURCE_SECONDS) -> None:
        self._source_seconds = source_seconds
        self._sources: dict[str, Source] = {}
        self._writing = threading.Lock()

    def add(self, part: str, source: Source) -> None:
        """Register the source of `part`."""
        self._sources[part] = source

    def write(self, reason: str) -> None:
        """Write all stacks, and the rows of each source. Never raise."""
        with self._writing:
            log.info("dumping state", reason=reason, threads=threading.active_count())
            _write_stacks()
            for part, source in list(self._sources.items()):
                self._write_source(part, source)
            log.info("state dumped", reason=reason)

    def _write_source(self, part: str, source: Source) -> None:
        rows: list[Row] = []
        failures: list[Exception] = []

        def collect() -> None:
            try:
                rows.extend(source())
            except Exception as error:  # noqa: BLE001 - a part that is broken must not hide the others
                failures.append(error)

        collecting = threading.Thread(target=collect, name=f"state-of-{part}", daemon=True)
        try:
            collecting.start()
        except RuntimeError as error:  # no thread can be started
            failures.append(error)
        else:
            collecting.join(self._source_seconds)
            if collecting.is_alive():
                log.warning("part of the server is stuck", part=part, seconds=self._source_seconds)
                return
        for failure in failures:
            log.error("cannot dump part of the server", part=part, exc_info=failure)
        for row in rows[:SHOWN_ROWS]:
            log.info("state", part=part, **row)
        if len(rows) > SHOWN_ROWS:
            log.info("state has more rows", part=part, rows=len(rows) - SHOWN_ROWS)


def _write_stacks() -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for ident, frame in sys._current_frames().items():
        threads[_frames(frame)].append(names.get(ident, f"thread {ident}"))
    for frames, names_of in sorted(threads.items(), key=lambda found: -len(found[1]))[:SHOWN_STACKS]:
        log.info("stack", threads=len(names_of), names=sorted(names_of)[:SHOWN_NAMES], frames=list(frames))
    if len(threads) > SHOWN_STACKS:
        log.info("state has more rows", part="stacks", rows=len(threads) - SHOWN_STACKS)


def _frames(frame: FrameType | None) -> tuple[str, ...]:
    """Return a stack as `file:line function`, innermost frame first."""
    found: list[str] = []
    while frame is not None and len(found) < SHOWN_FRAMES:
        code = frame.f_code
        found.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(found)


def _short(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(path.rsplit("/", 2)[-2:])
