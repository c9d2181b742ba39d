"""Warnings of fields of a client that is newer than this server, which protobuf skips in silence."""

import threading
from collections.abc import Iterator, MutableMapping, MutableSequence

import structlog
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

REMEMBERED_FIELDS = 100
"""Fields that are remembered and logged: more come from no kubelet."""

log = structlog.get_logger(__name__)


class UnknownFieldWarnings:
    """Log, once for each field, that a client uses a field that this version does not have. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def warn(self, request: Message) -> None:
        """Warn of the fields of `request` that were not seen before."""
        for field in unknown_fields(request):
            with self._lock:
                is_new = field not in self._warned and len(self._warned) < REMEMBERED_FIELDS
                if is_new:
                    self._warned.add(field)
            if is_new:
                log.warning("unknown field ignored: the client is newer than this server", field=field)


def unknown_fields(message: Message) -> Iterator[str]:
    """Name the fields, at any depth, that the CRI of this version does not have.

    As `ContainerConfig.21`: of such a field only the number is known.
    """
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # a gap in the stubs
        yield f"{message.DESCRIPTOR.name}.{unknown.field_number}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in _messages(value):
                yield from unknown_fields(inner)


def _messages(value: object) -> Iterator[Message]:
    """Yield the messages that a field holds: one, or those of a list or a map, of which many hold none."""
    match value:
        case Message():
            yield value
        case MutableMapping():
            yield from (inner for inner in value.values() if isinstance(inner, Message))
        case MutableSequence():
            yield from value
