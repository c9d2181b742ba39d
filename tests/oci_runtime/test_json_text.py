"""The JSON reader and writer give the same values and errors as the module `json`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.oci_runtime import json_text

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
blanks = st.text(" \t\n\r")
pieces = st.lists(
    st.sampled_from([b"{", b"}", b"[", b"]", b":", b",", b'"a"', b'"\\ud800"', b"\\", b"1", b"-", b".5", b"NaN", b" "])
    | st.binary(max_size=3)
).map(b"".join)


def outcome(read: Any, content: Any) -> tuple[object, object]:
    """Return the value as text, because NaN is not equal to itself, or the class and message of the error."""
    try:
        return None, repr(read(content))
    except (ValueError, TypeError, RecursionError) as error:
        return type(error), str(error)


@given(values)
def test_values_are_written_as_json_writes_them(value: object) -> None:
    assert json_text.write(value) == json.dumps(value).encode()


@given(values, blanks, blanks, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]), st.booleans())
def test_values_are_read_as_json_reads_them(
    value: object, before: str, after: str, encoding: str, escaped: bool
) -> None:
    text = before + json.dumps(value, ensure_ascii=escaped, indent=len(after) or None) + after
    content = text.encode(encoding, "surrogatepass")
    assert outcome(json_text.read, content) == outcome(json.loads, content)


@given(pieces)
def test_invalid_json_has_the_error_of_json(content: bytes) -> None:
    assert outcome(json_text.read, content) == outcome(json.loads, content)


@pytest.mark.parametrize("content", [b"", b" ", b"{} x", b'{"a": 1', b"[" * 100_000, b"9" * 5000, b'"\x00"'])
def test_damaged_file_has_the_error_of_json(content: bytes) -> None:
    assert outcome(json_text.read, content) == outcome(json.loads, content)
    assert outcome(json_text.read, content)[0] is not None


def test_unserializable_value_is_refused_like_by_json() -> None:
    within_itself: list[object] = []
    within_itself.append(within_itself)
    for value in (within_itself, [object()], {(1, 2): 3}, b"x"):
        kind, message = outcome(json_text.write, value)
        assert kind is not None
        assert (kind, message) == outcome(json.dumps, value)
