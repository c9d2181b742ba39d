"""The log process: a single thread that copies the output of all containers in turns, a chunk per turn.

It is a separate process, so that containers with much output do not slow down the server's interpreter. It keeps no
state: if it is killed, the next process continues from the CRI logs. It sleeps until an order or inotify wakes it, and
exits when the server ends.
"""

import argparse
import math
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never, get_args

import msgspec
import structlog

from shim.base.backoff import backoff
from shim.base.child_process import die_with_parent
from shim.base.decoding import prepare_types
from shim.base.log import LEVELS, configure
from shim.config.model import LogFormat
from shim.domain.errors import reason_of
from shim.logs.follow import Counts, Follower
from shim.logs.protocol import (
    BLOCKED_SHOWN,
    MAX_PACKET,
    NOT_FOLLOWED,
    Answer,
    Blocked,
    Drain,
    Envelope,
    Figures,
    Follow,
    Forget,
    Order,
    Ping,
    Reopen,
    Report,
)
from shim.logs.watches import Watches

MIN_INTERVAL = 0.05
"""Minimum seconds between two reads of inotify events, so that many lines share a read and a write."""
FALLBACK_POLL_SECONDS = 1.0
"""Poll interval of containers without an inotify watch."""
MIN_RETRY_SECONDS = 1.0
"""Back-off before a blocked log is retried; doubled after each failure."""
RETRY_CAP_SECONDS = 10.0

log = structlog.get_logger("shim.logs.worker")  # __name__ is __main__


@dataclass(slots=True, eq=False)
class _Followed:
    follower: Follower
    drains: list[int] = field(default_factory=list)
    """Tickets to answer when all output is written."""
    ended: bool = False
    """Whether the container has exited, so that it is dropped once all output is written."""
    gone: bool = False
    """Whether the container was removed, so that errors are not retried."""
    error: str = ""
    """Why the log cannot be written now; empty if it can."""
    since: float = 0.0
    failures: int = 0
    retry_at: float = math.inf


class Worker:
    """The loop of the log process: carries out orders and copies output."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._watches = Watches()
        self._followed: dict[str, _Followed] = {}
        self._ready: dict[str, None] = {}
        self._blocked: dict[str, _Followed] = {}
        self._counts = Counts()
        self._next_read = 0.0
        self._next_poll = 0.0
        self._orders_only, self._both = select.poll(), select.poll()
        for poll in (self._orders_only, self._both):
            poll.register(orders, select.POLLIN)
        if self._watches.fileno() >= 0:
            self._both.register(self._watches, select.POLLIN)

    def run(self) -> None:
        """Run until the server has ended."""
        try:
            while self._poll():
                self._take_turn()
        finally:
            self._watches.close()
            for followed in self._followed.values():
                followed.follower.close()

    def _poll(self) -> bool:
        """Wait for orders and inotify events, and process them. Return False if the server has ended."""
        paced = self._next_read > time.monotonic()
        found = {fd for fd, _ in (self._orders_only if paced else self._both).poll(self._timeout(paced=paced))}
        if self._watches.fileno() in found:
            self._next_read = time.monotonic() + MIN_INTERVAL
            self._ready.update(dict.fromkeys(self._watches.changed()))
        return self._orders.fileno() not in found or self._receive_order()

    def _timeout(self, *, paced: bool) -> float | None:
        """Return the milliseconds to wait; None for no limit."""
        if self._ready:
            return 0
        until = min((followed.retry_at for followed in self._blocked.values()), default=math.inf)
        until = min(until, self._next_read) if paced else until
        until = min(until, self._next_poll) if self._watches.unwatched else until
        return None if until == math.inf else math.ceil(max(0.0, until - time.monotonic()) * 1000)

    def _take_turn(self) -> None:
        if self._blocked:
            now = time.monotonic()
            due = [container_id for container_id, blocked in self._blocked.items() if blocked.retry_at <= now]
            self._ready.update(dict.fromkeys(due))
        if self._watches.unwatched and self._next_poll <= time.monotonic():
            self._next_poll = time.monotonic() + FALLBACK_POLL_SECONDS
            self._ready.update(self._watches.unwatched)
        if self._ready:
            container_id = next(iter(self._ready))
            del self._ready[container_id]
            followed = self._followed.get(container_id)
            if followed is not None:
                self._advance(container_id, followed)

    def _advance(self, container_id: str, followed: _Followed) -> None:
        if followed.error and followed.retry_at > time.monotonic():
            return
        # A log on a full disk can be opened, so only a successful write shows that it is writable again.
        more = self._attempt(followed, lambda: self._retry(followed) if followed.error else self._step(followed))
        if followed.error:
            return
        if more:
            self._ready[container_id] = None
        elif followed.ended:
            self._drop(container_id)
        else:
            self._answer_drains(followed, "")

    # Orders

    def _receive_order(self) -> bool:
        packet = self._orders.recv(MAX_PACKET)
        if not packet:
            return False
        envelope = msgspec.json.decode(packet, type=Envelope)
        self._carry_out(envelope.ticket, envelope.order)
        return True

    def _carry_out(self, ticket: int, order: Order) -> None:
        match order:
            case Follow():
                self._answer(ticket, self._follow(order))
            case Reopen():
                self._answer(ticket, self._reopen(order.id))
            case Drain() | Forget():
                self._end(ticket, order)
            case Report():
                self._send(Answer(ticket=ticket, figures=self._figures()))
            case Ping():
                self._send(Answer(ticket=ticket))
            case _:
                assert_never(order)

    def _follow(self, order: Follow) -> str:
        followed = self._followed.get(order.id)
        if followed is not None and followed.follower.order == order:
            followed.ended = False  # the container runs again; drains of its earlier run are answered later
            self._ready[order.id] = None
            return followed.error
        drains: list[int] = []
        if followed is not None:
            drains, followed.drains = followed.drains, []
            self._drop(order.id)
        followed = self._followed[order.id] = _Followed(Follower(order, self._counts), drains)
        self._attempt(followed, lambda: self._open(followed))
        self._ready[order.id] = None
        return followed.error

    def _reopen(self, container_id: str) -> str:
        followed = self._followed.get(container_id)
        if followed is None:
            return NOT_FOLLOWED
        if followed.error:
            self._attempt(followed, lambda: self._open(followed))
            self._ready[container_id] = None
            return followed.error
        try:
            followed.follower.reopen()
        except OSError as error:
            return _error_text(error)  # the old file is still open and written
        return ""

    def _end(self, ticket: int, order: Drain | Forget) -> None:
        followed = self._followed.get(order.id)
        if followed is None:
            self._answer(ticket, "")
            return
        followed.drains.append(ticket)
        followed.ended = True
        followed.gone = followed.gone or isinstance(order, Forget)
        if followed.gone and followed.error:
            self._drop(order.id)
            return
        # Clients wait for the last output, so retry a blocked log at once.
        followed.retry_at, followed.failures = 0.0, 0
        self._ready[order.id] = None

    def _figures(self) -> Figures:
        now = time.monotonic()
        blocked = [
            Blocked(
                id=container_id,
                path=followed.follower.order.cri,
                error=followed.error,
                seconds=round(now - followed.since, 3),
            )
            for container_id, followed in islice(self._blocked.items(), BLOCKED_SHOWN)
        ]
        return Figures(
            followed=len(self._followed),
            lines=self._counts.lines,
            unreadable=self._counts.unreadable,
            behind_bytes=sum(followed.follower.behind() for followed in self._followed.values()),
            blocked_logs=len(self._blocked),
            blocked=blocked,
        )

    def _answer(self, ticket: int, error: str) -> None:
        self._send(Answer(ticket=ticket, error=error))

    def _send(self, answer: Answer) -> None:
        packet = msgspec.json.encode(answer)
        while len(packet) > MAX_PACKET and (figures := answer.figures) is not None:
            fewer = msgspec.structs.replace(figures, blocked=figures.blocked[: len(figures.blocked) // 2])
            answer = msgspec.structs.replace(answer, figures=fewer)
            packet = msgspec.json.encode(answer)
        self._orders.send(packet)

    # Each container

    def _retry(self, followed: _Followed) -> bool:
        self._open(followed)
        return followed.follower.step()

    def _step(self, followed: _Followed) -> bool:
        if not followed.ended:
            self._ensure_watched(followed)
        return followed.follower.step()

    def _open(self, followed: _Followed) -> bool:
        # Watch the directory before the files are read, so that later writes cause events.
        self._ensure_watched(followed)
        followed.follower.open()
        return True

    def _ensure_watched(self, followed: _Followed) -> None:
        if not followed.follower.order.ended:
            self._watches.ensure(followed.follower.order)

    def _attempt(self, followed: _Followed, work: Callable[[], bool]) -> bool:
        try:
            done = work()
        except OSError as error:
            self._block(followed, _error_text(error))
            return False
        except Exception as error:  # an unexpected error must only affect this log
            log.exception("cannot copy log of container", container=followed.follower.order.id)
            self._block(followed, str(error) or type(error).__name__)
            return False
        if followed.error:
            log.info("container log is writable again", container=followed.follower.order.id)
            del self._blocked[followed.follower.order.id]
        followed.error, followed.failures = "", 0
        return done

    def _block(self, followed: _Followed, error: str) -> None:
        """Close a log until its next retry, which finds the position again. A removed container is dropped instead."""
        followed.follower.close()
        if not followed.error:
            followed.since = time.monotonic()
            log.warning(
                "cannot write container log, retrying",
                container=followed.follower.order.id,
                path=followed.follower.order.cri,
                error=error,
            )
        followed.error = error
        self._blocked[followed.follower.order.id] = followed
        followed.failures += 1
        pause = backoff(followed.failures, first=MIN_RETRY_SECONDS, longest=RETRY_CAP_SECONDS)
        followed.retry_at = time.monotonic() + pause
        if followed.gone:
            self._drop(followed.follower.order.id)

    def _drop(self, container_id: str) -> None:
        followed = self._followed.pop(container_id)
        self._ready.pop(container_id, None)
        self._blocked.pop(container_id, None)
        followed.follower.close()
        self._watches.remove(container_id)
        self._answer_drains(followed, followed.error)

    def _answer_drains(self, followed: _Followed, error: str) -> None:
        for ticket in followed.drains:
            self._answer(ticket, error)
        followed.drains.clear()


def _error_text(error: OSError) -> str:
    reason = reason_of(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def main() -> None:
    """Run the log process: `orders` is the descriptor of its socket, `--parent` the pid of the server."""
    parser = argparse.ArgumentParser(prog="python -m shim.logs.worker", description=__doc__)
    parser.add_argument("orders", type=int)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="auto")
    given = parser.parse_args()
    configure(level=given.log_level, style=given.log_format)
    # A suspended process (SIGSTOP) that outlives the server would keep the locks of its logs.
    die_with_parent(given.parent)
    prepare_types()
    with socket.socket(fileno=given.orders) as orders:
        try:
            Worker(orders).run()
        except (BrokenPipeError, ConnectionResetError):
            return  # the server died before it got the answer


if __name__ == "__main__":
    main()
