import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.logs.decode import Decoded, Record, decode, decode_line
from shim.logs.encode import encode, read_head
from tests.logs.docker import at, cri, line

RECORD = Record("hello\n", "stdout", at(5))

contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30)
records = st.lists(
    st.builds(
        Record,
        st.tuples(contents, st.booleans()).map(lambda part: part[0] + "\n" * part[1]),
        st.sampled_from(["stdout", "stderr"]),
        st.integers(0, 999_999_999).map(at),
    ),
    max_size=20,
)


def test_a_line() -> None:
    assert decode(line(RECORD)) == Decoded([RECORD])


def test_keys_that_a_daemon_adds_are_passed_over() -> None:
    text = {"log": "a\n", "stream": "stderr", "attrs": {"tag": "x", "time": "no"}, "time": at(5)}
    assert decode(json.dumps(text).encode() + b"\n").records == [Record("a\n", "stderr", at(5))]


def test_what_docker_escapes() -> None:
    text = rb'{"log":"a\u0000\u001b\u003c\ufffd\u2028\"\\\r\n","stream":"stdout","time":"2026-11-21T02:32:06Z"}' + b"\n"
    assert decode(text).records[0].log == 'a\x00\x1b<\ufffd\u2028"\\\r\n'


@pytest.mark.parametrize(
    "torn",
    [
        b'{"log":"he',
        b'{"log":"hello\\n","stream":"std',
        b'{"log":"hello\\n","stream":"stdin","time":"x"}',
        b'{"log":"hello\\n"}',
        b"\0\0\0\0",
        b"not json",
        b'{"log":"\xff\xfe\\n","stream":"stdout","time":"x"}',
    ],
)
def test_what_cannot_be_read_costs_no_other_line(torn: bytes) -> None:
    other = Record("other\n", "stderr", at(6))
    assert decode(line(RECORD) + torn + b"\n" + line(other)) == Decoded([RECORD, other], unreadable=1)


def test_the_record_behind_a_torn_one_is_read() -> None:
    """Docker appends to what a full disk left."""
    assert decode(b'{"log":"he' + line(RECORD)) == Decoded([RECORD])
    assert decode_line(b'{"log":"he') is None


@given(records)
def test_any_output_is_read_back(written: list[Record]) -> None:
    assert decode(b"".join(map(line, written))) == Decoded(written)


@given(records, st.data())
def test_any_split_at_lines_gives_the_same(written: list[Record], data: st.DataObject) -> None:
    lines = list(map(line, written))
    cut = data.draw(st.integers(0, len(lines)))
    parts = b"".join(lines[:cut]), b"".join(lines[cut:])
    assert [record for part in parts for record in decode(part).records] == written


@given(records)
def test_each_record_is_one_line_of_the_log(written: list[Record]) -> None:
    encoded = encode(written)
    assert encoded == b"".join(map(cri, written))
    for encoded_line, record in zip(encoded.split(b"\n")[:-1], written, strict=True):
        head = read_head(encoded_line)
        assert head is not None
        assert (head.time, head.stream) == (record.time, record.stream)
        assert encoded_line.startswith(head.prefix)
