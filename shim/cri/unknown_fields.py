"""Fields of a client that is newer than this server. Protobuf passes over them, so nobody else would tell of them."""

import threading
from collections.abc import Iterator, MutableMapping, MutableSequence

import structlog
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

MOST = 100
"""Fields that are remembered, and told: more come from no kubelet."""

log = structlog.get_logger(__name__)


class UnknownFieldWarnings:
    """Says in the log, once for each field, that a client asks for what this version does not know. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, request: Message) -> None:
        """Warn of the fields of `request` that were not met before."""
        for field in unknown_fields(request):
            with self._lock:
                is_new = field not in self._told and len(self._told) < MOST
                if is_new:
                    self._told.add(field)
            if is_new:
                log.warning("the client uses a field that this version does not know, it has no effect", field=field)


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
