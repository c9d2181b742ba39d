"""How plugins are told of an event: one that may fail what it is about, or one that may not."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from google.protobuf.message import Message

from shim.base import deadline
from shim.domain.errors import ShimError
from shim.nri.plugin import Occasion
from shim.runtime import Runtime

NOTE_SECONDS = 300.0
"""Bound on telling plugins of what has happened, also for a client that has gone; each has its own time besides."""

log = structlog.get_logger(__name__)


def tell(rt: Runtime, occasion: Occasion, request: Message) -> None:
    """Tell all plugins, within a turn. Raise FailedPrecondition with the error of one."""
    for _ in rt.nri.tell(occasion, request):
        pass


def note(rt: Runtime, occasion: Occasion, request: Message) -> None:
    """Tell all plugins of what nothing stops any more, within a turn. The error of one is logged."""
    for _ in noted(rt, occasion, request):
        pass


def noted(rt: Runtime, occasion: Occasion, request: Message) -> Iterator[tuple[object, Message]]:
    """Do the same, and yield the plugins and their answers."""
    try:
        yield from rt.nri.tell(occasion, request)
    except ShimError as error:
        log.warning("NRI plugin failed", call=occasion.method, error=error)


@contextmanager
def shielded_turn(rt: Runtime) -> Iterator[None]:
    """Have a turn also for a client that has gone: what has happened is told."""
    with deadline.shielded(NOTE_SECONDS), rt.nri.turn():
        yield
