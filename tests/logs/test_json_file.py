import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.logs.crilog import read_head
from shim.logs.format import CHUNK, Lines
from shim.logs.json_file import Record, decode_line, each, encode, lines, whole
from tests.logs.docker import Output, at, cri
from tests.logs.docker import json_line as line

RECORD = Output(b"hello\n", "stdout", at(5))

contents = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30)
outputs = st.lists(
    st.builds(
        Output,
        st.tuples(contents, st.booleans()).map(lambda part: (part[0] + "\n" * part[1]).encode()),
        st.sampled_from(["stdout", "stderr"]),
        st.integers(0, 999_999_999).map(at),
    ),
    max_size=20,
)


def test_a_record_becomes_a_cri_line() -> None:
    assert lines(line(RECORD)) == Lines(cri(RECORD), 1)
    assert decode_line(line(RECORD)) == Record("hello\n", "stdout", at(5))


def test_unknown_keys_are_ignored() -> None:
    text = {"log": "a\n", "stream": "stderr", "attrs": {"tag": "x", "time": "no"}, "time": at(5)}
    assert lines(json.dumps(text).encode() + b"\n").text == cri(Output(b"a\n", "stderr", at(5)))


def test_escapes_of_docker_are_decoded() -> None:
    text = rb'{"log":"a\u0000\u001b\u003c\ufffd\u2028\"\\\r\n","stream":"stdout","time":"2026-11-21T02:32:06Z"}' + b"\n"
    record = decode_line(text)
    assert record is not None
    assert record.log == 'a\x00\x1b<\ufffd\u2028"\\\r\n'


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
def test_an_unreadable_line_does_not_affect_other_lines(torn: bytes) -> None:
    other = Output(b"other\n", "stderr", at(6))
    first, last = line(RECORD), torn + b"\n" + line(other)
    assert lines(first + last) == Lines(cri(RECORD) + cri(other), 2, unreadable=1)
    assert list(each(first + last)) == [(len(first), cri(RECORD)), (len(first + last), cri(other))]


def test_the_record_after_a_torn_record_is_read() -> None:
    """After a full disk Docker appends to the torn record."""
    assert lines(b'{"log":"he' + line(RECORD)) == Lines(cri(RECORD), 1)
    assert decode_line(b'{"log":"he') is None


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"", 0), (b"ab", 0), (b"ab\ncd", 3), (b"\0" * CHUNK, CHUNK), (b"\0" * (CHUNK - 1), 0)],
    ids=["empty", "half", "one-and-a-half", "rubbish", "still-short"],
)
def test_whole_returns_the_length_of_whole_lines(data: bytes, count: int) -> None:
    assert whole(data) == count


@given(outputs)
def test_any_output_is_read_back(written: list[Output]) -> None:
    data = b"".join(map(line, written))
    assert lines(data) == Lines(b"".join(map(cri, written)), len(written))
    assert [found for _, found in each(data)] == list(map(cri, written))


@given(outputs)
def test_each_record_becomes_a_single_line_of_the_log(written: list[Output]) -> None:
    text = lines(b"".join(map(line, written))).text
    for encoded_line, output in zip(text.split(b"\n")[:-1], written, strict=True):
        head = read_head(encoded_line)
        assert head is not None
        assert (head.time, head.stream) == (output.time, output.stream)
        assert encoded_line.startswith(head.prefix)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("hello\n", b"T stdout F hello\n"),
        ("\n", b"T stdout F \n"),
        ("piece", b"T stdout P piece\n"),
        ("", b"T stdout P \n"),
        ("tty\r\n", b"T stdout F tty\r\n"),
        ("\u2028\x85\x0b\n", "T stdout F \u2028\x85\x0b\n".encode()),
        ("a\nb\n", b"T stdout F a\nT stdout F b\n"),
        ("a\n\nb", b"T stdout F a\nT stdout F \nT stdout P b\n"),
    ],
)
def test_encode_marks_whole_and_partial_lines(log: str, line: bytes) -> None:
    assert encode([Record(log, "stdout", "T")]) == line


def test_a_newline_inside_a_record_does_not_affect_other_records() -> None:
    records = [Record("a\nb\n", "stdout", "T"), Record("", "stderr", "T"), Record("c\n", "stderr", "T")]
    assert encode(records) == b"T stdout F a\nT stdout F b\nT stderr P \nT stderr F c\n"


def test_a_newline_in_a_damaged_time_does_not_make_another_line() -> None:
    damaged = rb'{"log":"a\n","stream":"stdout","time":"2026-11-21T02:32\nZ"}' + b"\n"
    assert lines(damaged).text == b"2026-11-21T02:32 Z stdout F a\n"
    assert [text for _, text in each(damaged)] == [b"2026-11-21T02:32 Z stdout F a\n"]
