"""Warns of request fields that this server does not know, since the client is newer. Protobuf skips them silently."""

import threading
from collections.abc import Iterator, MutableMapping, MutableSequence

import structlog
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

REMEMBERED_FIELDS = 100
"""Fields that are remembered and logged at most; no kubelet sends more."""

log = structlog.get_logger(__name__)


class UnknownFieldWarnings:
    """Logs each unknown field once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def warn(self, request: Message) -> None:
        """Warn of the unknown fields of `request` that have not been logged yet."""
        for field in unknown_fields(request):
            with self._lock:
                is_new = field not in self._warned and len(self._warned) < REMEMBERED_FIELDS
                if is_new:
                    self._warned.add(field)
            if is_new:
                log.warning("unknown field ignored: the client is newer than this server", field=field)


def unknown_fields(message: Message) -> Iterator[str]:
    """Yield the unknown fields at any depth as `ContainerConfig.21`: only the number of such a field is known."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # a gap in the stubs
        yield f"{message.DESCRIPTOR.name}.{unknown.field_number}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in _messages(value):
                yield from unknown_fields(inner)


def _messages(value: object) -> Iterator[Message]:
    """Yield the messages that a field holds: the value itself, or the entries of a list or map."""
    match value:
        case Message():
            yield value
        case MutableMapping():
            yield from (inner for inner in value.values() if isinstance(inner, Message))
        case MutableSequence():
            yield from value
