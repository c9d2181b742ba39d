"""Copies the output of a container from Docker's files to its CRI log, chunk by chunk."""

from dataclasses import dataclass
from pathlib import Path

import structlog

from shim.base.times import SECOND, ns_from_rfc3339
from shim.logs.crilog import first_time, last_time
from shim.logs.drivers import FORMATS
from shim.logs.protocol import Follow
from shim.logs.resume import find_position, written_tail
from shim.logs.sink import Sink, rotated_logs
from shim.logs.source import Source, close_all, generations

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counts:
    """Numbers of copied lines and of unreadable lines, for the state dump."""

    lines: int = 0
    unreadable: int = 0


class Follower:
    """Copies the output of a container. After an OSError, `open` must be called again.

    No position is stored. `open` finds the position in Docker's files from the last line of the CRI log
    (`shim.logs.resume`). Then each `step` reads whole records, converts them and appends them in one write. After an
    error or a crash, `open` finds the position in the same way. So no line is repeated, and no line is lost that Docker
    still has.
    """

    def __init__(self, order: Follow, counts: Counts) -> None:
        self.order = order
        self._counts = counts
        self._format = FORMATS[order.driver]
        self._source = Source(Path(order.docker), whole=self._format.whole)
        self._sink = Sink(Path(order.cri))
        self._last = ""

    def open(self) -> None:
        """Open the CRI log and continue after its last line.

        If the log of an exited container and its rotated files are missing, the log was removed, and is not created.
        """
        if self.order.ended and not self._sink.path.exists() and not rotated_logs(self._sink.path):
            return
        self._sink.open()
        files = generations(self._source.path)
        try:
            which = self._resume(files)
        except BaseException:
            close_all(files)
            raise
        close_all(files[:which])

    def step(self) -> bool:
        """Copy a chunk of output. Return whether more output may be available now."""
        if self._sink.fd < 0:
            return False
        records = self._source.read()
        if not records:
            return False
        if self._sink.replaced():
            self.open()
            return True
        self._copy(records)
        return True

    def reopen(self) -> None:
        """Continue in a new CRI log file. The old file is not written any more."""
        if self._sink.fd < 0:
            self.open()
        else:
            self._sink.open()

    def behind(self) -> int:
        """Return the number of bytes of Docker's files left to copy, also while the log is blocked."""
        return self._source.behind()

    def close(self) -> None:
        """Close all files. Idempotent."""
        self._source.close()
        self._sink.close()

    def _resume(self, files: list[int]) -> int:
        """Seek to the resume position. Return the index of its file; this file and later files stay open."""
        self._source.close()
        if not files:
            return 0
        tail = written_tail(self._sink.fd, self._sink.path)
        position = find_position(files, tail, file_format=self._format, since=self.order.since)
        if position.missing is not None:
            self._log_missing(*position.missing)
        self._last = tail.last.time if tail else ""
        self._source.seek(files[position.which :], position.offset)
        return position.which

    def _copy(self, records: bytes) -> None:
        read = self._format.lines(records)
        if read.text:
            self._log_dropped(first_time(read.text))
            self._sink.write(read.text)
            self._last = last_time(read.text)
        self._source.advance(len(records))
        self._counts.lines += read.count
        if read.unreadable:
            self._counts.unreadable += read.unreadable
            log.warning("skipped unreadable lines of Docker's log", container=self.order.id, lines=read.unreadable)

    def _log_dropped(self, first: str) -> None:
        if self._source.dropped and self._last:
            self._log_missing(self._last, first)
        self._source.dropped = False

    def _log_missing(self, last: str, first: str) -> None:
        seconds = (ns_from_rfc3339(first) - ns_from_rfc3339(last)) / SECOND
        log.warning(
            "Docker dropped output that was not copied yet",
            container=self.order.id,
            missing_seconds=round(seconds, 3),
            after=last,
            before=first,
        )
