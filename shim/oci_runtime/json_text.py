"""Read and write JSON as the module `json` does, by the functions in C below it.

It imports little: `json` brings `re` and `enum`, and these take longer than all that the program does with a container.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False  # to load typing takes as long as to load this package
if TYPE_CHECKING:
    from typing import Any, NoReturn

_BLANKS = " \t\n\r"


class _Settings:
    """Those of json.loads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


_scan = _json.make_scanner(_Settings())  # type: ignore[arg-type] # any object with these attributes will do


def read(content: bytes) -> Any:
    """Return the value of a text in JSON. Raise ValueError, with the message of `json`."""
    try:
        text = content.decode()
        value, end = _scan(text, len(text) - len(text.lstrip(_BLANKS)))
        if not text[end:].strip(_BLANKS):
            return value
    except (StopIteration, ValueError):
        pass
    import json  # noqa: PLC0415 - only for a text that is malformed, or in another encoding

    return json.loads(content)


def write(value: Any) -> bytes:
    """Return the text of a value. Raise TypeError and ValueError, as `json` does."""
    markers: dict[int, object] = {}
    """What is being written, by which it finds a value within itself."""
    indent, sort_keys, skip_keys, allow_nan = None, False, False, True
    escape = _json.encode_basestring_ascii
    encode = _json.make_encoder(markers, _refuse, escape, indent, ": ", ", ", sort_keys, skip_keys, allow_nan)
    return "".join(encode(value, 0)).encode()


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
