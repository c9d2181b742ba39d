"""Converts the Engine's JSON into the shapes of `shim.engine.answers`."""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read(answer: Any, shape: type[T]) -> T:
    """Convert a decoded answer; an unexpected `null` counts as missing. Raise msgspec.ValidationError."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError:
        return msgspec.convert(_without_nulls(answer), shape)


def decoded(content: bytes, shape: type[T]) -> T:
    """Decode an answer and convert it as `read` does."""
    try:
        return msgspec.json.decode(content, type=shape)
    except msgspec.ValidationError:
        return read(msgspec.json.decode(content), shape)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
