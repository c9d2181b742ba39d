"""The log process: one thread that copies the output of all containers, one piece of each in turn.

It is a program of its own, so that a container that writes as fast as it can takes nothing from the server's
interpreter. It keeps no state: whatever it is killed in the midst of, the next one goes on from the CRI logs. It
sleeps until an order or inotify wakes it, and ends when the server does.
"""

import argparse
import math
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never, get_args

import msgspec
import structlog

from shim.base.log import LEVELS, configure
from shim.config.model import LogFormat
from shim.domain.errors import reason_of
from shim.logs.follow import Counts, Follower
from shim.logs.protocol import (
    BLOCKED_SHOWN,
    MAX_PACKET,
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

PACE = 0.05
"""Seconds between two looks at what has changed: many lines are then one read and one write. The first is at once."""
GLANCE = 1.0
"""Seconds between two looks at what cannot be watched."""
RETRY_LEAST = 1.0
"""Seconds until a log that cannot be written is tried again; doubled each time."""
RETRY_MOST = 10.0

log = structlog.get_logger("shim.logs.worker")  # run as a program, its name is __main__


@dataclass(slots=True, eq=False)
class _Followed:
    follower: Follower
    drains: list[int] = field(default_factory=list)
    """Tickets to answer when everything is written."""
    ended: bool = False
    """It writes no more, and is followed no more once everything is written."""
    gone: bool = False
    """The container was removed: there is no second try."""
    error: str = ""
    """Why the log cannot be written now."""
    since: float = 0.0
    failures: int = 0
    retry_at: float = math.inf


class Worker:
    """Follows what it is told to follow."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._watches = Watches()
        self._followed: dict[str, _Followed] = {}
        self._ready: dict[str, None] = {}
        self._blocked: dict[str, _Followed] = {}
        self._counts = Counts()
        self._next_look = 0.0
        self._next_glance = 0.0
        self._orders_only, self._both = select.poll(), select.poll()
        for poll in (self._orders_only, self._both):
            poll.register(orders, select.POLLIN)
        if self._watches.fileno() >= 0:
            self._both.register(self._watches, select.POLLIN)

    def run(self) -> None:
        """Work until the server is gone."""
        try:
            while self._look():
                self._take_turn()
        finally:
            self._watches.close()
            for followed in self._followed.values():
                followed.follower.close()

    def _look(self) -> bool:
        """Wait for something to do, and see what it is; False when the server is gone."""
        paced = self._next_look > time.monotonic()
        found = {fd for fd, _ in (self._orders_only if paced else self._both).poll(self._patience(paced=paced))}
        if self._watches.fileno() in found:
            self._next_look = time.monotonic() + PACE
            self._ready.update(dict.fromkeys(self._watches.changed()))
        return self._orders.fileno() not in found or self._obey()

    def _patience(self, *, paced: bool) -> float | None:
        """Milliseconds to wait; None for until something happens."""
        if self._ready:
            return 0
        until = min((followed.retry_at for followed in self._blocked.values()), default=math.inf)
        until = min(until, self._next_look) if paced else until
        until = min(until, self._next_glance) if self._watches.unwatched else until
        return None if until == math.inf else math.ceil(max(0.0, until - time.monotonic()) * 1000)

    def _take_turn(self) -> None:
        if self._blocked:
            now = time.monotonic()
            due = [container_id for container_id, blocked in self._blocked.items() if blocked.retry_at <= now]
            self._ready.update(dict.fromkeys(due))
        if self._watches.unwatched and self._next_glance <= time.monotonic():
            self._next_glance = time.monotonic() + GLANCE
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
        # A log on a full disk can be opened: only when something has been written it is well again.
        more = self._tried(followed, lambda: self._again(followed) if followed.error else self._step(followed))
        if followed.error:
            return
        if more:
            self._ready[container_id] = None
        elif followed.ended:
            self._drop(container_id)
        else:
            self._answer_drains(followed, "")

    # Orders

    def _obey(self) -> bool:
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
            followed.ended = False  # it runs again; who waits for what it wrote before still does
            self._ready[order.id] = None
            return followed.error
        drains: list[int] = []
        if followed is not None:
            drains, followed.drains = followed.drains, []
            self._drop(order.id)
        followed = self._followed[order.id] = _Followed(Follower(order, self._counts), drains)
        self._tried(followed, lambda: self._open(followed))
        self._ready[order.id] = None
        return followed.error

    def _reopen(self, container_id: str) -> str:
        followed = self._followed.get(container_id)
        if followed is None:
            return "its output is not followed"
        if followed.error:
            self._tried(followed, lambda: self._open(followed))
            self._ready[container_id] = None
            return followed.error
        try:
            followed.follower.reopen()
        except OSError as error:
            return _words(error)  # the old file is still there and is written on
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
        # Somebody waits for the end now, so a log that could not be written is tried again soon.
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

    # One container

    def _again(self, followed: _Followed) -> bool:
        self._open(followed)
        return followed.follower.step()

    def _step(self, followed: _Followed) -> bool:
        if not followed.ended:
            self._ensure_watched(followed)
        return followed.follower.step()

    def _open(self, followed: _Followed) -> bool:
        # Before the files are looked at: what is written from now on is told.
        self._ensure_watched(followed)
        followed.follower.open()
        return True

    def _ensure_watched(self, followed: _Followed) -> None:
        if not followed.follower.order.ended:
            self._watches.ensure(followed.follower.order)

    def _tried(self, followed: _Followed, deed: Callable[[], bool]) -> bool:
        try:
            done = deed()
        except OSError as error:
            self._block(followed, _words(error))
            return False
        except Exception as error:  # one log that nobody foresaw must not end those of all the others
            log.exception("the log of a container failed", container=followed.follower.order.id)
            self._block(followed, str(error) or type(error).__name__)
            return False
        if followed.error:
            log.info("the log of a container can be written again", container=followed.follower.order.id)
            del self._blocked[followed.follower.order.id]
        followed.error, followed.failures = "", 0
        return done

    def _block(self, followed: _Followed, error: str) -> None:
        """Put a log off: the position is found again from what is in the file."""
        followed.follower.close()
        if not followed.error:
            followed.since = time.monotonic()
            log.warning(
                "the log of a container cannot be written, will be tried again",
                container=followed.follower.order.id,
                path=followed.follower.order.cri,
                error=error,
            )
        followed.error = error
        self._blocked[followed.follower.order.id] = followed
        followed.retry_at = time.monotonic() + min(RETRY_LEAST * 2**followed.failures, RETRY_MOST)
        followed.failures = min(followed.failures + 1, 16)
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


def _words(error: OSError) -> str:
    reason = reason_of(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def main() -> None:
    """Run the process: `--orders` is the descriptor of its socket."""
    parser = argparse.ArgumentParser(prog="python -m shim.logs.worker", description=__doc__)
    parser.add_argument("--orders", type=int, required=True)
    parser.add_argument("--log-level", choices=list(LEVELS), default="info")
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="auto")
    given = parser.parse_args()
    configure(level=given.log_level, style=given.log_format)
    os.umask(0o022)
    with socket.socket(fileno=given.orders) as orders:
        try:
            Worker(orders).run()
        except (BrokenPipeError, ConnectionResetError):
            return  # the server died while it was being answered


if __name__ == "__main__":
    main()
