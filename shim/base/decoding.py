"""Types of JSON, made ready before threads use them."""

import threading
from collections.abc import Iterator

import msgspec

_LOCK = threading.Lock()


def prepare_types() -> None:
    """Make every `msgspec.Struct` that is imported ready to be decoded by several threads. Thread-safe.

    msgspec resolves the annotations of a type when it is first decoded, and publishes the half-made result: a second
    thread that decodes the type meanwhile ends the process with a segmentation fault (msgspec 0.22).
    """
    with _LOCK:
        for struct in _subclasses(msgspec.Struct):
            msgspec.json.Decoder(struct)


def _subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)
