"""Reads and writes JSON with the C functions of the module `json`, but without the module.

It imports little: `json` imports `re` and `enum`, which take longer than everything else this program does.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from typing import Any, NoReturn

_BLANKS = " \t\n\r"


class _Settings:
    """The defaults of json.loads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


_scan = _json.make_scanner(_Settings())  # type: ignore[arg-type] # any object with these attributes works


def read(content: bytes) -> Any:
    """Parse JSON. Raise ValueError, with the message of `json`."""
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
    """Return the JSON text of a value. Raise TypeError and ValueError like `json`."""
    markers: dict[int, object] = {}
    """The objects being written. The encoder uses them to detect cycles."""
    indent, sort_keys, skip_keys, allow_nan = None, False, False, True
    escape = _json.encode_basestring_ascii
    encode = _json.make_encoder(markers, _refuse, escape, indent, ": ", ", ", sort_keys, skip_keys, allow_nan)
    return "".join(encode(value, 0)).encode()


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
