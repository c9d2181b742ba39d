"""Calls of NRI plugins for an event: either their errors fail the operation, or the errors are only logged."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from google.protobuf.message import Message

from shim.base import deadline
from shim.domain.errors import ShimError
from shim.nri.plugin import Event
from shim.runtime import Runtime

NOTE_SECONDS = 300.0
"""Limit for all plugins together to learn of a past event, whose client may have gone. Each call also has a limit."""

log = structlog.get_logger(__name__)


def call_plugins(rt: Runtime, event: Event, request: Message) -> None:
    """Call all plugins, within a turn. Raise FailedPrecondition with the error of a plugin."""
    for _ in rt.nri.call(event, request):
        pass


def notify_plugins(rt: Runtime, event: Event, request: Message) -> None:
    """Call all plugins about an event that they cannot prevent, within a turn. Log the error of a plugin."""
    for _ in notify_each_plugin(rt, event, request):
        pass


def notify_each_plugin(rt: Runtime, event: Event, request: Message) -> Iterator[tuple[object, Message]]:
    """Like `notify_plugins`; yield each plugin and its answer."""
    try:
        yield from rt.nri.call(event, request)
    except ShimError as error:
        log.warning("NRI plugin failed", call=event.method, error=error)


@contextmanager
def shielded_turn(rt: Runtime) -> Iterator[None]:
    """Hold a turn even if the client has gone, so that plugins learn of every past event."""
    with deadline.shielded(NOTE_SECONDS), rt.nri.turn():
        yield
