"""Prepares the types of JSON messages before several threads use them."""

import threading
from collections.abc import Iterator

import msgspec

_LOCK = threading.Lock()


def prepare_types() -> None:
    """Resolve the annotations of all imported `msgspec.Struct` classes. Thread-safe.

    msgspec 0.22 resolves the annotations when a type is first decoded, and publishes the incomplete result: a second
    thread that decodes the type at that moment crashes the process with a segmentation fault.
    """
    with _LOCK:
        for struct in _subclasses(msgspec.Struct):
            msgspec.json.Decoder(struct)


def _subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)
